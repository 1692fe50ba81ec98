//! The official servers, through every surface: check, discover, refused, classify, call, fail, time out, give up.
//!
//! What happens is written once ([`story`]); what differs between the servers is a [`scenario::Scenario`], and what
//! differs between the library, the API and the command is a [`surface::Surface`].

mod blocking;
mod scenario;
mod story;
mod surface;
