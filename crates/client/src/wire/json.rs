//! What is asked and answered, as JSON over HTTP.

mod reply;
mod request;

pub(super) use reply::answer;
pub(super) use request::request;
