//! Canaries in every place that takes a secret: none of them shows anywhere.
//!
//! | canary | planted in | looked for in |
//! |---|---|---|
//! | `CANARY-env-…` | the environment of a stdio server | what the library returns (`Debug` and text) |
//! | `CANARY-header-…` | a header of every request | every answer of the API |
//! | `CANARY-token-…` | a bearer token | what the command prints, as text and as JSON |
//! | `CANARY-password-…` | the password of basic authentication, and its encoded form | the log, of every crate at every level |
//! | `CANARY-custom-…` | a header of the server's own | the audit trail and the ledger |
//! | `CANARY-file-…` | a file that a reference names | the bytes of the database and its backup |
//! | `CANARY-variable-…` | a variable that a reference names | errors with all their causes |
//! | `CANARY-stderr-…` | an environment value that the child complains of | |
//! | `CANARY-echo-…` | a token that an upstream repeats in its error answers | |
//! | `CANARY-url-…` | the user part of a URL, which is refused | |
//! | `CANARY-argument-…` | the arguments of a call | |
//! | the key | the key ring | |
//! | the token | the API, to sign in | |

mod mirror;
mod planted;
mod sightings;

mod command;
mod library;
