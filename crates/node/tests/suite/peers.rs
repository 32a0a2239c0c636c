//! Authorisation of peer calls, on real TLS connections.

mod invitations;
mod names;
mod table;
