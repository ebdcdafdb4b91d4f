//! What the storm test is made of: engines whose mood changes, clients that know which answer is theirs, and who watches.

pub(crate) mod clients;
pub(crate) mod engines;
pub(crate) mod watch;
