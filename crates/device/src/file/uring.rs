//! io_uring.
use super::request::Request;

pub(super) fn is_available() -> bool {
    false
}

pub(super) fn submit(request: Request) {
    super::blocking::submit(request);
}
