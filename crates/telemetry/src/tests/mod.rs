mod documented;
