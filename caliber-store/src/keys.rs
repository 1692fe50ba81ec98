//! The keys of stored secrets, and how a secret is sealed with them: XChaCha20-Poly1305 with a random nonce,
//! bound to the identifiers of the secret and of what it belongs to, so that a row that was moved does not open.

use std::fmt;

use caliber_core::id::SecretId;
use caliber_core::registry::SecretOwner;
use caliber_core::secret::SecretText;
use caliber_core::text::shown;
use chacha20poly1305::aead::{Aead, Generate, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use secrecy::{ExposeSecret, ExposeSecretMut, SecretBox};
use sha2::{Digest, Sha256};

use crate::error::{Error, ErrorKind, Result};

/// The length of a key in bytes.
const KEY_LENGTH: usize = 32;
/// The most keys of one ring.
pub const KEY_RING_LENGTH: usize = 64;
/// What the digest begins with that names a key.
const KEY_ID_DOMAIN: &[u8] = b"caliber secret key\0";
/// What the bound data begins with.
const BOUND_DOMAIN: &str = "caliber secret 1";

/// The keys that secrets are stored under: one that encrypts, and older ones that still decrypt.
///
/// A ring is text with one key a line, each 64 hexadecimal digits; the first one is current. Empty lines and
/// lines that begin with `#` do not count. A key is named by a digest of itself, so that a wrong key is never
/// taken for the right one.
///
/// To rotate: put a new key in front, start again, call
/// [`Store::rotate_secrets`](crate::Store::rotate_secrets), remove the old key.
#[derive(Clone)]
pub struct KeyRing {
    current: Key,
    older: Vec<Key>,
}

/// One key and its name.
struct Key {
    id: KeyId,
    bytes: SecretBox<[u8; KEY_LENGTH]>,
}

/// The name of a key: 16 hexadecimal digits of a digest of it. It is not secret.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyId(Box<str>);

/// A secret as it is stored.
#[derive(Debug)]
pub(crate) struct SealedSecret {
    pub(crate) id: SecretId,
    pub(crate) owner: SecretOwner,
    pub(crate) key: KeyId,
    pub(crate) nonce: Vec<u8>,
    pub(crate) ciphertext: Vec<u8>,
}

impl KeyRing {
    /// Reads a ring from its text, such as the content of a key file.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Key`] when there is no key, a line is no key, a key appears twice, or there are more than
    /// [`KEY_RING_LENGTH`]. The text names the line and never repeats it.
    pub fn parse(text: &str) -> Result<Self> {
        let mut keys: Vec<Key> = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let number = index + 1;
            let key = Key::parse(line).ok_or_else(|| {
                problem(format!(
                    "line {number} of the key ring is no key; write 64 hexadecimal digits"
                ))
            })?;
            if keys.iter().any(|known| known.id == key.id) {
                return Err(problem(format!(
                    "line {number} of the key ring repeats a key; remove it"
                )));
            }
            if keys.len() == KEY_RING_LENGTH {
                return Err(problem(format!(
                    "the key ring has more than {KEY_RING_LENGTH} keys; remove those that nothing is stored under"
                )));
            }
            keys.push(key);
        }
        let mut keys = keys.into_iter();
        let current = keys
            .next()
            .ok_or_else(|| problem("the key ring is empty; write 64 hexadecimal digits".to_owned()))?;
        Ok(Self {
            current,
            older: keys.collect(),
        })
    }

    /// A line with a new random key, for a key file.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`] when the operating system gives no random bytes.
    pub fn generate_line() -> Result<SecretText> {
        let bytes = <[u8; KEY_LENGTH]>::try_generate().map_err(|error| no_randomness().with_source(error))?;
        let bytes = SecretBox::new(Box::new(bytes));
        Ok(SecretText::new(hex(bytes.expose_secret())))
    }

    /// The name of the key that encrypts.
    pub fn current(&self) -> &KeyId {
        &self.current.id
    }

    /// The names of all keys, the current one first.
    pub fn ids(&self) -> impl Iterator<Item = &KeyId> {
        std::iter::once(&self.current)
            .chain(&self.older)
            .map(|key| &key.id)
    }

    /// Encrypts a secret under the current key.
    pub(crate) fn seal(
        &self,
        id: &SecretId,
        owner: &SecretOwner,
        value: &SecretText,
    ) -> Result<SealedSecret> {
        let nonce = XNonce::try_generate().map_err(|error| no_randomness().with_source(error))?;
        let bound = bound(id, owner);
        let payload = Payload {
            msg: value.expose().as_bytes(),
            aad: bound.as_bytes(),
        };
        let ciphertext = self
            .current
            .cipher()
            .encrypt(&nonce, payload)
            .map_err(|_| Error::new(ErrorKind::Defect, "a secret could not be encrypted"))?;
        Ok(SealedSecret {
            id: id.clone(),
            owner: owner.clone(),
            key: self.current.id.clone(),
            nonce: nonce.to_vec(),
            ciphertext,
        })
    }

    /// Decrypts a secret under the key that it names.
    pub(crate) fn open(&self, sealed: &SealedSecret) -> Result<SecretText> {
        let SealedSecret {
            id,
            owner,
            key,
            nonce,
            ciphertext,
        } = sealed;
        let found = std::iter::once(&self.current)
            .chain(&self.older)
            .find(|known| known.id == *key);
        let found = found.ok_or_else(|| {
            problem(format!(
                "the secret {id} is stored under the key {key}, which is not in the key ring; add that key"
            ))
        })?;
        let damaged = || {
            Error::new(
                ErrorKind::Secret,
                format!(
                    "the stored secret {id} does not open: its row was changed; give the secret of {owner} again"
                ),
            )
        };
        let nonce = XNonce::try_from(nonce.as_slice()).map_err(|_| damaged())?;
        let bound = bound(id, owner);
        let payload = Payload {
            msg: ciphertext,
            aad: bound.as_bytes(),
        };
        let opened = found.cipher().decrypt(&nonce, payload).map_err(|_| damaged())?;
        // Both ways the bytes end in a value that is wiped when it is dropped.
        match String::from_utf8(opened) {
            Ok(text) => Ok(SecretText::new(text)),
            Err(error) => {
                drop(SecretBox::new(Box::new(error.into_bytes())));
                Err(damaged())
            }
        }
    }
}

impl fmt::Debug for KeyRing {
    /// The names only.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.ids()).finish()
    }
}

impl Key {
    fn parse(line: &str) -> Option<Self> {
        let mut bytes = SecretBox::new(Box::new([0; KEY_LENGTH]));
        if line.len() != 2 * KEY_LENGTH || !line.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let pairs = line.as_bytes().chunks_exact(2);
        for (byte, pair) in bytes.expose_secret_mut().iter_mut().zip(pairs) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        let digest = Sha256::new()
            .chain_update(KEY_ID_DOMAIN)
            .chain_update(bytes.expose_secret())
            .finalize();
        let id = KeyId(hex(digest.get(..8)?).into());
        Some(Self { id, bytes })
    }

    fn cipher(&self) -> XChaCha20Poly1305 {
        XChaCha20Poly1305::new(self.bytes.expose_secret().into())
    }
}

impl Clone for Key {
    fn clone(&self) -> Self {
        Self {
            id: self.id.clone(),
            bytes: SecretBox::new(Box::new(*self.bytes.expose_secret())),
        }
    }
}

impl KeyId {
    /// The name as it stands in a row.
    pub(crate) fn from_row(text: String) -> Self {
        Self(text.into())
    }

    /// The text form.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&shown(&self.0))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// What a ciphertext is bound to.
fn bound(id: &SecretId, owner: &SecretOwner) -> String {
    format!("{BOUND_DOMAIN}\0{id}\0{owner}")
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    let mut out = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a `String` cannot fail.
        let _ = write!(out, "{byte:02x}");
    }
    out
}

fn problem(message: String) -> Error {
    Error::new(ErrorKind::Key, message)
}

fn no_randomness() -> Error {
    Error::new(ErrorKind::Io, "the operating system gives no random bytes")
}

#[cfg(test)]
mod tests {
    use caliber_core::id::{CodeToolId, ServerId};

    use super::*;

    const ONE: &str = "0101010101010101010101010101010101010101010101010101010101010101";
    const TWO: &str = "0202020202020202020202020202020202020202020202020202020202020202";

    fn ring(lines: &[&str]) -> KeyRing {
        KeyRing::parse(&lines.join("\n")).unwrap()
    }

    #[test]
    fn a_ring_reads_its_own_lines_and_names_what_is_wrong() {
        let line = KeyRing::generate_line().unwrap();
        let made = KeyRing::parse(&format!("# of today\n\n  {}\n{ONE}\n", line.expose())).unwrap();
        assert_eq!(made.ids().count(), 2);
        assert_ne!(made.current(), ring(&[ONE]).current());
        let short = &ONE[1..];
        for (text, place) in [
            ("", "empty"),
            ("# only words", "empty"),
            (short, "line 1"),
            (&format!("{ONE}\n+1{}", &ONE[2..]), "line 2"),
            (&format!("{ONE}\n{ONE}"), "line 2"),
        ] {
            let error = KeyRing::parse(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Key);
            let told = format!("{error} {error:?}");
            assert!(told.contains(place) && !told.contains("0101"), "{told}");
        }
        let many: Vec<_> = (0..=KEY_RING_LENGTH).map(|n| format!("{n:064x}")).collect();
        assert!(KeyRing::parse(&many.join("\n")).is_err());
        assert!(KeyRing::parse(&many[1..].join("\n")).is_ok());
    }

    #[test]
    fn a_secret_opens_where_it_belongs_and_nowhere_else() {
        let (id, server) = (SecretId::new(), SecretOwner::Server(ServerId::new()));
        let secret = SecretText::new("canary");
        let sealed = || ring(&[ONE]).seal(&id, &server, &secret).unwrap();
        assert_eq!(ring(&[TWO, ONE]).open(&sealed()).unwrap().expose(), "canary");
        assert_ne!(sealed().ciphertext, sealed().ciphertext);

        let moved = SealedSecret {
            owner: SecretOwner::Server(ServerId::new()),
            ..sealed()
        };
        let renamed = SealedSecret {
            id: SecretId::new(),
            ..sealed()
        };
        let mut bent = sealed();
        bent.ciphertext[0] ^= 1;
        let mut cut = sealed();
        cut.nonce.pop();
        let given_to_a_tool = SealedSecret {
            owner: SecretOwner::CodeTool(CodeToolId::new()),
            ..sealed()
        };
        for wrong in [&moved, &given_to_a_tool, &renamed, &bent, &cut] {
            assert_eq!(ring(&[ONE]).open(wrong).unwrap_err().kind(), ErrorKind::Secret);
        }
        let absent = ring(&[TWO]).open(&sealed()).unwrap_err();
        assert_eq!(absent.kind(), ErrorKind::Key);
        assert!(absent.to_string().contains("not in the key ring"), "{absent}");
    }

    #[test]
    fn a_ring_shows_names_only() {
        let shown = format!("{:?}", ring(&[ONE, TWO]));
        assert!(!shown.contains("0101") && !shown.contains("1, 1"), "{shown}");
    }
}
