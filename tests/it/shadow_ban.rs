//! shadow_ban
