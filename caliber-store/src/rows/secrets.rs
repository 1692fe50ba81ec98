//! Encrypted secrets.

use caliber_core::registry::SecretOwner;
use diesel::prelude::*;

use super::{parsed, unreadable};
use crate::error::Result;
use crate::keys::{KeyId, SealedSecret};
use crate::schema::secrets;

/// A secret under a key.
#[derive(Queryable, Selectable, Insertable)]
#[diesel(table_name = secrets, check_for_backend(diesel::sqlite::Sqlite), treat_none_as_default_value = false)]
pub(crate) struct SecretRow {
    id: String,
    server_id: Option<String>,
    code_tool_id: Option<String>,
    key_id: String,
    nonce: Vec<u8>,
    ciphertext: Vec<u8>,
}

/// The two columns that say what a secret belongs to.
fn owner_columns(owner: &SecretOwner) -> (Option<String>, Option<String>) {
    match owner {
        SecretOwner::Server(server) => (Some(server.to_string()), None),
        SecretOwner::CodeTool(tool) => (None, Some(tool.to_string())),
    }
}

impl SecretRow {
    pub(crate) fn of(sealed: &SealedSecret) -> Self {
        let (server_id, code_tool_id) = owner_columns(&sealed.owner);
        Self {
            id: sealed.id.to_string(),
            server_id,
            code_tool_id,
            key_id: sealed.key.as_str().to_owned(),
            nonce: sealed.nonce.clone(),
            ciphertext: sealed.ciphertext.clone(),
        }
    }

    pub(crate) fn sealed(self) -> Result<SealedSecret> {
        let owner = match (&self.server_id, &self.code_tool_id) {
            (Some(server), None) => SecretOwner::Server(parsed("secrets.server_id", server)?),
            (None, Some(tool)) => SecretOwner::CodeTool(parsed("secrets.code_tool_id", tool)?),
            _ => {
                return Err(unreadable(
                    "secrets.server_id",
                    "the secret belongs to nothing, or to two",
                ));
            }
        };
        Ok(SealedSecret {
            id: parsed("secrets.id", &self.id)?,
            owner,
            key: KeyId::from_row(self.key_id),
            nonce: self.nonce,
            ciphertext: self.ciphertext,
        })
    }
}
