//! HTTP/2 on the data listener.

mod floods;
mod frames;
mod invalid;
mod requests;
