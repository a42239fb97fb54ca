//! Jute, ZooKeeper's encoding: big-endian numbers, and buffers preceded by their length.

use crate::error::{Error, Result};

/// Writes one frame: its length, then its content.
#[derive(Debug)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn new() -> Self {
        // The frame's length, which `finish` fills in.
        Self(vec![0; 4])
    }

    pub(crate) fn int(&mut self, value: i32) {
        self.0.extend_from_slice(&value.to_be_bytes());
    }

    pub(crate) fn long(&mut self, value: i64) {
        self.0.extend_from_slice(&value.to_be_bytes());
    }

    pub(crate) fn flag(&mut self, value: bool) {
        self.0.push(u8::from(value));
    }

    /// Writes a length or a number of items. A number of 2^31 or more is written as 2^31 - 1: no
    /// server accepts such a frame anyway.
    pub(crate) fn count(&mut self, count: usize) {
        self.int(i32::try_from(count).unwrap_or(i32::MAX));
    }

    pub(crate) fn buffer(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.buffer(text.as_bytes());
    }

    pub(crate) fn texts<'a>(&mut self, texts: impl ExactSizeIterator<Item = &'a str>) {
        self.count(texts.len());
        texts.for_each(|text| self.text(text));
    }

    /// The bytes written so far, without the frame's length.
    #[cfg(test)]
    pub(crate) fn into_body(self) -> Vec<u8> {
        self.0[4..].to_vec()
    }

    /// The whole frame, beginning with its length.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        let length = i32::try_from(self.0.len() - 4).unwrap_or(i32::MAX);
        self.0[..4].copy_from_slice(&length.to_be_bytes());
        self.0
    }

    /// Appends the content of another writer, without the length of its frame.
    pub(crate) fn append(&mut self, other: &Self) {
        self.0.extend_from_slice(&other.0[4..]);
    }
}

/// Reads the content of a frame. It never panics, for any bytes.
#[derive(Debug)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk().ok_or(Error::Malformed("truncated"))?;
        self.0 = rest;
        Ok(*head)
    }

    pub(crate) fn int(&mut self) -> Result<i32> {
        self.array().map(i32::from_be_bytes)
    }

    pub(crate) fn long(&mut self) -> Result<i64> {
        self.array().map(i64::from_be_bytes)
    }

    pub(crate) fn flag(&mut self) -> Result<bool> {
        self.array::<1>().map(|[byte]| byte != 0)
    }

    /// Reads a number of items; 0 also for -1, which stands for no list.
    pub(crate) fn count(&mut self) -> Result<usize> {
        match self.int()? {
            -1 => Ok(0),
            count => usize::try_from(count).map_err(|_| Error::Malformed("a length is negative")),
        }
    }

    pub(crate) fn buffer(&mut self) -> Result<&'a [u8]> {
        let length = self.count()?;
        let (head, rest) = self.0.split_at_checked(length).ok_or(Error::Malformed("truncated"))?;
        self.0 = rest;
        Ok(head)
    }

    pub(crate) fn text(&mut self) -> Result<&'a str> {
        std::str::from_utf8(self.buffer()?).map_err(|_| Error::Malformed("a text is not UTF-8"))
    }

    /// Reads a list; `read` reads each item.
    pub(crate) fn list<T>(&mut self, mut read: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let count = self.count()?;
        // Each item has at least four bytes: the server's count alone does not decide how much
        // memory is allocated.
        let mut list = Vec::with_capacity(count.min(self.0.len() / 4));
        for _ in 0..count {
            list.push(read(self)?);
        }
        Ok(list)
    }

    pub(crate) fn texts(&mut self) -> Result<Vec<String>> {
        self.list(|reader| reader.text().map(str::to_owned))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut writer = Writer::new();
        writer.int(-7);
        writer.long(1 << 40);
        writer.flag(true);
        writer.texts(["a", "é"].into_iter());
        let frame = writer.finish();
        assert_eq!(frame[..4], 28_i32.to_be_bytes());
        let mut reader = Reader::new(&frame[4..]);
        assert_eq!((reader.int(), reader.long(), reader.flag()), (Ok(-7), Ok(1 << 40), Ok(true)));
        assert_eq!(reader.texts(), Ok(vec!["a".to_owned(), "é".to_owned()]));
        assert!(reader.is_empty());
    }

    #[test]
    fn malformed_bytes_are_refused() {
        assert!(Reader::new(&[0, 0]).int().is_err());
        assert!(Reader::new(&[0, 0, 0, 9, 1]).buffer().is_err());
        assert!(Reader::new(&[0xff, 0xff, 0xff, 0xf0]).buffer().is_err());
        assert_eq!(Reader::new(&[0xff; 4]).buffer(), Ok(&[][..]), "no buffer at all");
        assert!(Reader::new(&[0, 0, 0, 1, 0xff]).text().is_err());
        assert!(Reader::new(&[0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0]).texts().is_err());
    }
}
