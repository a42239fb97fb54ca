//! The part of RESP that the requests need.

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};

/// The words of the next request; `None` at the end of the connection.
pub(super) async fn request(stream: &mut (impl AsyncBufRead + Unpin)) -> Option<Vec<Vec<u8>>> {
    let count = header(stream, '*').await?;
    let mut words = Vec::with_capacity(count);
    for _ in 0..count {
        let length = header(stream, '$').await?;
        let mut word = vec![0; length + 2];
        stream.read_exact(&mut word).await.ok()?;
        word.truncate(length);
        words.push(word);
    }
    Some(words)
}

async fn header(stream: &mut (impl AsyncBufRead + Unpin), kind: char) -> Option<usize> {
    let mut text = String::new();
    stream.read_line(&mut text).await.ok()?;
    text.strip_prefix(kind)?.trim_end().parse().ok()
}

pub(super) fn text(text: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", text.len()).as_bytes(), text, b"\r\n"].concat()
}

pub(super) fn int(number: u64) -> Vec<u8> {
    format!(":{number}\r\n").into_bytes()
}

/// The answer to HELLO.
pub(super) fn hello() -> Vec<u8> {
    b"%3\r\n+server\r\n+redis\r\n+version\r\n+7.4.0\r\n+proto\r\n:3\r\n".to_vec()
}

pub(super) fn subscribed(channel: &[u8]) -> Vec<u8> {
    [b">3\r\n", &text(b"subscribe")[..], &text(channel), b":1\r\n"].concat()
}
