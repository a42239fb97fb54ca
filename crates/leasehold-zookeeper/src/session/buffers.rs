//! Buffers for bytes that are received and not read yet, and for bytes to send.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::error::{Error, Result};
use crate::wire::MAX_FRAME;

/// The minimum number of bytes to read at once.
const MIN_READ: usize = 8 * 1024;
/// A buffer that has grown beyond this is not kept.
const MAX_KEPT: usize = 256 * 1024;

/// Bytes that the server has sent, until whole frames are taken from them.
#[derive(Debug, Default)]
pub(super) struct ReceiveBuffer {
    bytes: Vec<u8>,
    /// The bytes before this have been read.
    start: usize,
}

impl ReceiveBuffer {
    /// Waits for more bytes from the server. The future may be dropped at any time.
    pub(super) async fn fill(&mut self, reader: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
        if self.start == self.bytes.len() {
            self.bytes.clear();
            if self.bytes.capacity() > MAX_KEPT {
                self.bytes = Vec::new();
            }
        } else {
            self.bytes.drain(..self.start);
        }
        self.start = 0;
        self.bytes.reserve(MIN_READ);
        match reader.read_buf(&mut self.bytes).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// Takes the next frame, without its length; `None` if it is not complete yet.
    pub(super) fn next(&mut self) -> Result<Option<Vec<u8>>> {
        let rest = &self.bytes[self.start..];
        let Some((length, rest)) = rest.split_first_chunk() else { return Ok(None) };
        let length = usize::try_from(i32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        if length > MAX_FRAME {
            return Err(Error::Malformed("a frame is too long"));
        }
        let Some(frame) = rest.get(..length) else { return Ok(None) };
        let frame = frame.to_vec();
        self.start += 4 + length;
        Ok(Some(frame))
    }
}

/// Bytes to the server: requests made while earlier ones are still unwritten are written together
/// with them.
#[derive(Debug, Default)]
pub(super) struct SendBuffer {
    bytes: Vec<u8>,
    /// The bytes before this were written.
    start: usize,
    /// Whether TLS may still hold back written bytes.
    needs_flush: bool,
}

impl SendBuffer {
    pub(super) fn push(&mut self, frame: &[u8]) {
        self.bytes.extend_from_slice(frame);
    }

    /// How many bytes are not written yet.
    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    /// Whether bytes must still be written or flushed.
    pub(super) fn has_pending(&self) -> bool {
        self.needs_flush || self.len() > 0
    }

    /// Writes some of the bytes, or flushes what was written. The future may be dropped at any
    /// time.
    pub(super) async fn write_some(&mut self, writer: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        if self.len() == 0 {
            writer.flush().await?;
            self.needs_flush = false;
            return Ok(());
        }
        let written = writer.write(&self.bytes[self.start..]).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.needs_flush = true;
        self.start += written;
        if self.len() == 0 {
            self.start = 0;
            self.bytes.clear();
            if self.bytes.capacity() > MAX_KEPT {
                self.bytes = Vec::new();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn frames_come_in_pieces_and_together() {
        let (mut local, mut remote) = tokio::io::duplex(64);
        let mut received = ReceiveBuffer::default();
        remote.write_all(&[0, 0, 0, 2, 7]).await.unwrap();
        received.fill(&mut local).await.unwrap();
        assert_eq!(received.next(), Ok(None));
        remote.write_all(&[8, 0, 0, 0, 0, 0, 0, 0, 1, 9, 0]).await.unwrap();
        received.fill(&mut local).await.unwrap();
        assert_eq!(received.next(), Ok(Some(vec![7, 8])));
        assert_eq!(
            (received.next(), received.next(), received.next()),
            (Ok(Some(vec![])), Ok(Some(vec![9])), Ok(None))
        );
        drop(remote);
        assert!(received.fill(&mut local).await.is_err());
    }

    #[test]
    fn a_frame_that_is_too_long_is_refused() {
        for length in [i32::MAX, -1, i32::try_from(MAX_FRAME).unwrap() + 1] {
            let mut received = ReceiveBuffer { bytes: length.to_be_bytes().to_vec(), start: 0 };
            assert!(matches!(received.next(), Err(Error::Malformed(_))), "{length}");
        }
    }

    #[tokio::test]
    async fn frames_pushed_during_a_write_are_sent_with_it() {
        let (mut local, mut remote) = tokio::io::duplex(3);
        let mut outbox = SendBuffer::default();
        outbox.push(&[1, 2]);
        outbox.push(&[3, 4]);
        outbox.write_some(&mut local).await.unwrap();
        assert_eq!(outbox.len(), 1);
        let mut read = [0; 3];
        remote.read_exact(&mut read).await.unwrap();
        assert_eq!(read, [1, 2, 3]);
        outbox.write_some(&mut local).await.unwrap();
        assert!(outbox.has_pending(), "it is not flushed");
        outbox.write_some(&mut local).await.unwrap();
        assert!(!outbox.has_pending());
    }
}
