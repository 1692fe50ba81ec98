//! Encrypted secrets.

use std::collections::{BTreeSet, HashSet};

use caliber_core::id::SecretId;
use caliber_core::registry::SecretOwner;
use caliber_core::{Error as CoreError, ErrorKind};
use diesel::{ExpressionMethods, OptionalExtension, QueryDsl, SelectableHelper};
use diesel_async::RunQueryDsl;

use super::{Backend, Connection};
use crate::error::Result;
use crate::keys::{KeyId, SealedSecret};
use crate::rows::SecretRow;
use crate::schema::secrets;

/// One secret, still sealed.
pub(crate) async fn secret(conn: &mut Connection, id: &SecretId) -> Result<Option<SealedSecret>> {
    let row: Option<SecretRow> = secrets::table
        .find(id.as_str())
        .select(SecretRow::as_select())
        .get_result(conn)
        .await
        .optional()?;
    row.map(SecretRow::sealed).transpose()
}

/// One secret of each key that something is stored under.
pub(crate) async fn keys_in_use(conn: &mut Connection) -> Result<Vec<SealedSecret>> {
    let keys: Vec<String> = secrets::table
        .select(secrets::key_id)
        .distinct()
        .order(secrets::key_id)
        .load(conn)
        .await?;
    let mut found = Vec::with_capacity(keys.len());
    for key in keys {
        let row: Option<SecretRow> = secrets::table
            .filter(secrets::key_id.eq(key))
            .select(SecretRow::as_select())
            .first(conn)
            .await
            .optional()?;
        found.extend(row.map(SecretRow::sealed).transpose()?);
    }
    Ok(found)
}

/// At most `limit` secrets that are stored under another key than `key`.
pub(crate) async fn stale_secrets(
    conn: &mut Connection,
    key: &KeyId,
    limit: i64,
) -> Result<Vec<SealedSecret>> {
    let rows: Vec<SecretRow> = secrets::table
        .filter(secrets::key_id.ne(key.as_str()))
        .order(secrets::id)
        .limit(limit)
        .select(SecretRow::as_select())
        .load(conn)
        .await?;
    rows.into_iter().map(SecretRow::sealed).collect()
}

/// Puts secrets under another key in place of themselves.
pub(crate) async fn store(conn: &mut Connection, sealed: &[SealedSecret]) -> Result<()> {
    for secret in sealed {
        diesel::update(secrets::table.find(secret.id.as_str()))
            .set((
                secrets::key_id.eq(secret.key.as_str()),
                secrets::nonce.eq(&secret.nonce),
                secrets::ciphertext.eq(&secret.ciphertext),
            ))
            .execute(conn)
            .await?;
    }
    Ok(())
}

/// New secrets of a server or of a code tool.
pub(super) async fn insert(
    conn: &mut Connection,
    owner: &SecretOwner,
    sealed: &[SealedSecret],
) -> Result<()> {
    for secret in sealed {
        if secret.owner != *owner {
            let foreign = format!("the secret {} is sealed for something else", secret.id);
            return Err(CoreError::new(ErrorKind::Invalid, foreign).into());
        }
        diesel::insert_into(secrets::table)
            .values(SecretRow::of(secret))
            .execute(conn)
            .await?;
    }
    Ok(())
}

/// The identifiers of the secrets of a server or of a code tool.
pub(super) async fn of_owner(conn: &mut Connection, owner: &SecretOwner) -> Result<HashSet<String>> {
    let select = secrets::table.select(secrets::id).into_boxed::<Backend>();
    let select = match owner {
        SecretOwner::Server(server) => select.filter(secrets::server_id.eq(server.to_string())),
        SecretOwner::CodeTool(tool) => select.filter(secrets::code_tool_id.eq(tool.to_string())),
    };
    let ids: Vec<String> = select.load(conn).await?;
    Ok(ids.into_iter().collect())
}

/// Removes the secrets of an owner that are not in `used`.
pub(super) async fn remove_unused(
    conn: &mut Connection,
    owner: &SecretOwner,
    used: &BTreeSet<SecretId>,
) -> Result<()> {
    let used: HashSet<&str> = used.iter().map(SecretId::as_str).collect();
    for id in of_owner(conn, owner).await? {
        if !used.contains(id.as_str()) {
            diesel::delete(secrets::table.find(id)).execute(conn).await?;
        }
    }
    Ok(())
}
