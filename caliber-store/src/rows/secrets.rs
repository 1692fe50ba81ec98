//! Encrypted secrets.

use diesel::prelude::*;

use super::parsed;
use crate::error::Result;
use crate::keys::{KeyId, SealedSecret};
use crate::schema::secrets;

/// A secret under a key.
#[derive(Queryable, Selectable, Insertable)]
#[diesel(table_name = secrets, check_for_backend(diesel::sqlite::Sqlite))]
pub(crate) struct SecretRow {
    id: String,
    server_id: String,
    key_id: String,
    nonce: Vec<u8>,
    ciphertext: Vec<u8>,
}

impl SecretRow {
    pub(crate) fn of(sealed: &SealedSecret) -> Self {
        Self {
            id: sealed.id.to_string(),
            server_id: sealed.server.to_string(),
            key_id: sealed.key.as_str().to_owned(),
            nonce: sealed.nonce.clone(),
            ciphertext: sealed.ciphertext.clone(),
        }
    }

    pub(crate) fn sealed(self) -> Result<SealedSecret> {
        Ok(SealedSecret {
            id: parsed("secrets.id", &self.id)?,
            server: parsed("secrets.server_id", &self.server_id)?,
            key: KeyId::from_row(self.key_id),
            nonce: self.nonce,
            ciphertext: self.ciphertext,
        })
    }
}
