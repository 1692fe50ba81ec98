//! The frames between the engine and a child, on descriptor 3 of the child.
//!
//! `u32` length in little endian, then as many bytes: one byte of kind, 16 bytes of nonce, the payload. The nonce keeps
//! stale and misrouted frames away, no more: code in the child can read it. So nothing that the engine can know by itself
//! is in a frame.

use rustix::rand::GetRandomFlags;

/// Bytes before the payload that the length counts.
const HEAD: usize = 17;
/// What a frame that carries no value of the tool may hold, in bytes.
const PLAIN: usize = 64 << 10;

/// The number that ties frames to one call.
pub(crate) type Nonce = [u8; 16];

/// A nonce that was not used before.
pub(crate) fn new_nonce() -> Nonce {
    let mut nonce = [0; 16];
    // So few bytes come whole or, on a kernel that has just booted, not at all: then all children have the same one.
    let _ = rustix::rand::getrandom(&mut nonce, GetRandomFlags::empty());
    nonce
}

/// What a child says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// Every restriction is in place, nothing of the tool has run.
    Hello,
    /// The module is imported.
    Ready,
    /// The value.
    Result,
    /// Why there is no value.
    Error,
    /// A call was forked; with the descriptor of its process.
    Forked,
    /// A forked call has ended.
    Done,
    /// What a forked call left is gone.
    Free,
}

impl Said {
    fn read(kind: u8) -> Option<Self> {
        Some(match kind {
            1 => Self::Hello,
            2 => Self::Ready,
            3 => Self::Result,
            4 => Self::Error,
            5 => Self::Forked,
            6 => Self::Done,
            7 => Self::Free,
            _ => return None,
        })
    }
}

/// What a child is told.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(crate) enum Told {
    /// What it is for.
    Setup = 16,
    /// The arguments and secrets of a call.
    Call = 17,
    /// To fork a call; with its descriptors.
    Fork = 18,
}

/// The bytes of a frame.
pub(crate) fn frame(kind: Told, nonce: &Nonce, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(HEAD + payload.len()).unwrap_or(u32::MAX);
    let mut bytes = Vec::with_capacity(4 + HEAD + payload.len());
    bytes.extend(length.to_le_bytes());
    bytes.push(kind as u8);
    bytes.extend(nonce);
    bytes.extend(payload);
    bytes
}

/// A frame of a child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) said: Said,
    pub(crate) payload: Vec<u8>,
}

/// Why what a child says cannot be read any further.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Violation {
    /// It is no frame.
    Malformed(&'static str),
    /// The frame is of another call.
    Nonce,
    /// The value is larger than allowed; its length was looked at, no more.
    TooLarge,
}

/// Puts frames together from the bytes as they come, for one nonce.
#[derive(Debug)]
pub(crate) struct FrameReader {
    nonce: Nonce,
    /// The largest payload of a value, in bytes.
    limit: usize,
    buffer: Vec<u8>,
}

impl FrameReader {
    pub(crate) fn new(nonce: Nonce, limit: usize) -> Self {
        Self {
            nonce,
            limit,
            buffer: Vec::new(),
        }
    }

    /// Takes over the nonce and the limit of the next call.
    pub(crate) fn expect(&mut self, nonce: Nonce, limit: usize) {
        self.nonce = nonce;
        self.limit = limit;
    }

    /// Whether a frame has begun that has not ended.
    pub(crate) fn is_amid(&self) -> bool {
        !self.buffer.is_empty()
    }

    /// Adds bytes. They are bounded by what the caller reads at once and by [`next`](Self::next), which is to be called
    /// until it has no more.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next frame, when it is whole.
    pub(crate) fn next(&mut self) -> Result<Option<Frame>, Violation> {
        let Some((length, rest)) = self.buffer.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*length) as usize;
        let Some(payload_length) = length.checked_sub(HEAD) else {
            return Err(Violation::Malformed("a frame is shorter than its head"));
        };
        // A length that no frame may have is refused before anything else of the frame is there.
        if payload_length > self.limit.max(PLAIN) {
            return Err(Violation::TooLarge);
        }
        let Some((kind, after)) = rest.split_first() else {
            return Ok(None);
        };
        let said = Said::read(*kind).ok_or(Violation::Malformed("a frame is of no known kind"))?;
        if payload_length > if said == Said::Result { self.limit } else { PLAIN } {
            return Err(if said == Said::Result {
                Violation::TooLarge
            } else {
                Violation::Malformed("a frame is longer than its kind may be")
            });
        }
        let Some((nonce, payload)) = after.split_first_chunk::<16>() else {
            return Ok(None);
        };
        if *nonce != self.nonce {
            return Err(Violation::Nonce);
        }
        let Some(payload) = payload.get(..payload_length) else {
            return Ok(None);
        };
        let frame = Frame {
            said,
            payload: payload.to_vec(),
        };
        self.buffer.drain(..4 + length);
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONCE: Nonce = [7; 16];

    fn said(kind: u8, nonce: Nonce, payload: &[u8]) -> Vec<u8> {
        let mut bytes = frame(Told::Setup, &nonce, payload);
        bytes[4] = kind;
        bytes
    }

    #[test]
    fn frames_come_whole_however_they_are_cut() {
        let mut bytes = said(1, NONCE, b"");
        bytes.extend(said(3, NONCE, b"[1,2]"));
        for cut in 1..bytes.len() {
            let mut reader = FrameReader::new(NONCE, 100);
            let mut frames = Vec::new();
            for part in bytes.chunks(cut) {
                reader.push(part);
                while let Some(frame) = reader.next().unwrap() {
                    frames.push(frame);
                }
            }
            assert_eq!(frames.len(), 2);
            assert_eq!(frames[1].payload, b"[1,2]");
            assert!(!reader.is_amid());
        }
    }

    #[test]
    fn a_length_is_refused_before_its_bytes_are_there() {
        let mut reader = FrameReader::new(NONCE, 100_000);
        reader.push(&u32::MAX.to_le_bytes());
        assert_eq!(reader.next(), Err(Violation::TooLarge));

        let mut reader = FrameReader::new(NONCE, 10);
        reader.push(&said(3, NONCE, &[0; 11])[..5]);
        assert_eq!(reader.next(), Err(Violation::TooLarge));

        let mut reader = FrameReader::new(NONCE, 10);
        reader.push(&16_u32.to_le_bytes());
        assert!(matches!(reader.next(), Err(Violation::Malformed(_))));
    }

    #[test]
    fn frames_of_other_calls_and_kinds_are_refused() {
        let mut reader = FrameReader::new(NONCE, 10);
        reader.push(&said(3, [8; 16], b"1"));
        assert_eq!(reader.next(), Err(Violation::Nonce));
        let mut reader = FrameReader::new(NONCE, 10);
        reader.push(&said(9, NONCE, b"1"));
        assert!(matches!(reader.next(), Err(Violation::Malformed(_))));
    }
}
