pub(super) mod openapi;
