//! A child process that speaks in lines over its standard input and output.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use caliber_core::gateway::BEFORE_LAST_WORDS;
use caliber_core::process::{LaunchedProcess, ProcessHandle};
use caliber_core::reason::ReasonCode;
use caliber_core::text::escaped;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::Outgoing;
use crate::error::{Failure, upstream_text_end};
use crate::inbox::{Inbox, PendingAnswer, Reply};
use crate::raw;
use crate::redact::Redactor;

/// Messages that wait to be written. A server that does not read makes callers wait, until their deadline.
const WRITE_QUEUE: usize = 64;
/// What is kept of standard error, in bytes.
const STDERR_BYTES: usize = 64 << 10;
/// How much of a line that is too long is kept, to find out whom it answers, in bytes.
const PREFIX_BYTES: usize = 1 << 10;
/// How many times the longest line may be skipped before the process counts as broken.
const SKIPPED_LINES: usize = 4;
/// How long a process that closed its output may take to say why.
const LAST_WORDS: Duration = Duration::from_millis(300);
/// Answers to requests of the server that may wait; beyond that they are dropped.
const ANSWER_SHARE: usize = WRITE_QUEUE / 2;

/// A running server.
#[derive(Debug)]
pub(crate) struct Stdio {
    inbox: Arc<Inbox>,
    outgoing: Mutex<Option<mpsc::Sender<String>>>,
    stderr: Arc<StderrRing>,
    redactor: Arc<Redactor>,
    stop: CancellationToken,
    ended: watch::Receiver<bool>,
    _reader: AbortOnDropHandle<()>,
}

impl Stdio {
    /// Takes over a process that was started. `line_bytes` is the longest line it may write.
    pub(crate) fn new(
        process: LaunchedProcess,
        inbox: Arc<Inbox>,
        redactor: Arc<Redactor>,
        line_bytes: usize,
        farewell: Duration,
    ) -> Self {
        let LaunchedProcess {
            stdin,
            stdout,
            stderr: errors,
            handle,
        } = process;
        let stderr = Arc::new(StderrRing::default());
        let (outgoing, queue) = mpsc::channel(WRITE_QUEUE);
        let (exit_sender, exit) = watch::channel(None);
        let (ended_sender, ended) = watch::channel(false);
        let stop = CancellationToken::new();
        tokio::spawn(write_lines(stdin, queue));
        tokio::spawn(drain(errors, Arc::clone(&stderr)));
        tokio::spawn(supervise(
            handle,
            stop.clone(),
            farewell,
            exit_sender,
            ended_sender,
        ));
        let reader = Reader {
            inbox: Arc::clone(&inbox),
            outgoing: outgoing.downgrade(),
            line_bytes,
        };
        let last_words = LastWords {
            exit,
            stderr: Arc::clone(&stderr),
            redactor: Arc::clone(&redactor),
        };
        let reading = tokio::spawn({
            let inbox = Arc::clone(&inbox);
            let stop = stop.clone();
            let ended = ended.clone();
            async move {
                let failure = match reader.run_until(stdout, ended).await {
                    Some(failure) => failure,
                    None => last_words.failure().await,
                };
                inbox.close(failure);
                // Nothing can come from it any more.
                stop.cancel();
            }
        });
        Self {
            inbox,
            outgoing: Mutex::new(Some(outgoing)),
            stderr,
            redactor,
            stop,
            ended,
            _reader: AbortOnDropHandle::new(reading),
        }
    }

    pub(crate) async fn exchange(&self, outgoing: Outgoing<'_>) -> Result<Reply, Failure> {
        let queue = self.queue()?;
        let pending = self.inbox.register(outgoing.id)?;
        let cancellable = outgoing.is_cancellable();
        let mut call = WrittenCall {
            pending,
            id: outgoing.id,
            queue,
            armed: false,
        };
        let permit = match call.queue.reserve().await {
            Ok(permit) => permit,
            Err(_) => return Err(self.ended_failure().not_sent()),
        };
        permit.send(raw::single_line(outgoing.text));
        call.armed = cancellable;
        let reply = call.pending.wait().await;
        call.armed = false;
        reply
    }

    pub(crate) async fn notify(&self, text: String) -> Result<(), Failure> {
        let queue = self.queue()?;
        let sent = queue.send(raw::single_line(text)).await;
        sent.map_err(|_| self.ended_failure().not_sent())
    }

    /// The end of standard error, escaped and without secrets.
    pub(crate) fn stderr_tail(&self) -> Option<String> {
        self.stderr.tail(&self.redactor)
    }

    /// Ends the process and its descendants; returns when none is left.
    pub(crate) async fn close(&self) {
        self.outgoing
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        self.inbox.close(Failure::lost("the session was closed"));
        self.stop.cancel();
        let mut ended = self.ended.clone();
        // An error means that the supervisor is gone, and the process with it.
        drop(ended.wait_for(|ended| *ended).await);
    }

    fn queue(&self) -> Result<mpsc::Sender<String>, Failure> {
        let queue = self.outgoing.lock().unwrap_or_else(PoisonError::into_inner);
        queue.clone().ok_or_else(|| self.ended_failure().not_sent())
    }

    fn ended_failure(&self) -> Failure {
        self.inbox
            .closed()
            .unwrap_or_else(|| Failure::lost("the server's process has ended"))
    }
}

impl Drop for Stdio {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// A request that was written; dropped before its answer, it tells the server so.
struct WrittenCall {
    pending: PendingAnswer,
    id: u64,
    queue: mpsc::Sender<String>,
    armed: bool,
}

impl Drop for WrittenCall {
    fn drop(&mut self) {
        if self.armed {
            // A full queue means that the server does not read; it would not read this either.
            drop(self.queue.try_send(raw::cancelled(self.id)));
        }
    }
}

async fn write_lines(mut stdin: Box<dyn AsyncWrite + Send + Unpin>, mut queue: mpsc::Receiver<String>) {
    while let Some(mut line) = queue.recv().await {
        line.push('\n');
        // The reader notices the end of a process that takes no input any more.
        if stdin.write_all(line.as_bytes()).await.is_err() || stdin.flush().await.is_err() {
            return;
        }
    }
}

/// Waits for the end of the process, or brings it about.
async fn supervise(
    mut handle: Box<dyn ProcessHandle>,
    stop: CancellationToken,
    farewell: Duration,
    exit: watch::Sender<Option<String>>,
    ended: watch::Sender<bool>,
) {
    tokio::select! {
        status = handle.wait() => { exit.send_replace(Some(status)); }
        () = stop.cancelled() => {
            if let Ok(status) = tokio::time::timeout(farewell, handle.wait()).await {
                exit.send_replace(Some(status));
            }
        }
    }
    // Descendants may have outlived it.
    handle.terminate().await;
    ended.send_replace(true);
}

/// What a process leaves behind when its output ends.
struct LastWords {
    exit: watch::Receiver<Option<String>>,
    stderr: Arc<StderrRing>,
    redactor: Arc<Redactor>,
}

impl LastWords {
    async fn failure(mut self) -> Failure {
        let status = async {
            let status = self.exit.wait_for(Option::is_some).await.ok()?.clone();
            while !self.stderr.is_drained() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            status
        };
        let status = tokio::time::timeout(LAST_WORDS, status).await.ok().flatten();
        let mut message = match status.or_else(|| self.exit.borrow().clone()) {
            Some(status) => format!("the server's process ended ({status})"),
            None => "the server closed its output".to_owned(),
        };
        if let Some(tail) = self.stderr.tail(&self.redactor) {
            let tail = upstream_text_end(&tail);
            message.push_str(&format!("{BEFORE_LAST_WORDS}{tail}"));
        }
        Failure::lost(message)
    }
}

/// The end of what a process writes to standard error.
#[derive(Debug, Default)]
struct StderrRing {
    bytes: Mutex<VecDeque<u8>>,
    drained: AtomicBool,
}

impl StderrRing {
    fn push(&self, chunk: &[u8]) {
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let chunk = chunk
            .get(chunk.len().saturating_sub(STDERR_BYTES)..)
            .unwrap_or_default();
        let excess = (bytes.len() + chunk.len()).saturating_sub(STDERR_BYTES);
        let excess = excess.min(bytes.len());
        bytes.drain(..excess);
        bytes.extend(chunk);
    }

    fn tail(&self, redactor: &Redactor) -> Option<String> {
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        if bytes.is_empty() {
            return None;
        }
        let text = String::from_utf8_lossy(bytes.make_contiguous()).into_owned();
        drop(bytes);
        Some(escaped(&redactor.redact(text.trim_end()), STDERR_BYTES))
    }

    fn is_drained(&self) -> bool {
        self.drained.load(Ordering::Acquire)
    }
}

async fn drain(mut errors: Box<dyn AsyncRead + Send + Unpin>, ring: Arc<StderrRing>) {
    let mut buffer = vec![0; 8 << 10];
    while let Ok(length @ 1..) = errors.read(&mut buffer).await {
        ring.push(buffer.get(..length).unwrap_or_default());
    }
    ring.drained.store(true, Ordering::Release);
}

/// Reads lines, within bounds.
struct Reader {
    inbox: Arc<Inbox>,
    outgoing: mpsc::WeakSender<String>,
    line_bytes: usize,
}

impl Reader {
    /// Reads until the output ends, or until shortly after the process has ended: a descendant that got away may hold
    /// the output open for ever.
    async fn run_until(
        &self,
        stdout: impl AsyncRead + Unpin,
        mut ended: watch::Receiver<bool>,
    ) -> Option<Failure> {
        let reading = self.run(stdout);
        tokio::pin!(reading);
        let process_ended = async { drop(ended.wait_for(|ended| *ended).await) };
        tokio::select! {
            broken = &mut reading => broken,
            () = process_ended => tokio::time::timeout(LAST_WORDS, reading).await.ok().flatten(),
        }
    }

    /// Reads until the output ends; a failure when the server broke the framing.
    async fn run(&self, stdout: impl AsyncRead + Unpin) -> Option<Failure> {
        let mut stdout = BufReader::with_capacity(64 << 10, stdout);
        let mut line: Vec<u8> = Vec::new();
        // How much of a line that is too long was thrown away.
        let mut skipped = 0_usize;
        loop {
            let available = stdout.fill_buf().await.ok()?;
            if available.is_empty() {
                return None;
            }
            let (part, complete) = match available.iter().position(|byte| *byte == b'\n') {
                Some(end) => (available.get(..end).unwrap_or_default(), true),
                None => (available, false),
            };
            let used = part.len() + usize::from(complete);
            if skipped > 0 {
                skipped += part.len();
            } else if line.len() + part.len() > self.line_bytes {
                let room = PREFIX_BYTES.saturating_sub(line.len());
                line.extend_from_slice(part.get(..room.min(part.len())).unwrap_or_default());
                line.truncate(PREFIX_BYTES);
                skipped = self.line_bytes.max(1);
                let id = raw::id_in_prefix(&line);
                let failure = self.too_long();
                if id.is_none() {
                    return Some(failure.ending_session());
                }
                self.inbox.count_dropped();
                self.inbox.settle(id, Err(failure));
                line = Vec::new();
            } else if complete && line.is_empty() {
                self.take(part);
            } else {
                line.extend_from_slice(part);
            }
            stdout.consume(used);
            if skipped > self.line_bytes.saturating_mul(SKIPPED_LINES) {
                return Some(self.too_long().ending_session());
            }
            if complete {
                skipped = 0;
                if !line.is_empty() {
                    self.take(&line);
                    line.clear();
                    line.shrink_to(1 << 20);
                }
            }
        }
    }

    fn take(&self, line: &[u8]) {
        let line = line.trim_ascii();
        if line.is_empty() {
            return;
        }
        let Ok(text) = std::str::from_utf8(line) else {
            self.inbox.count_dropped();
            return;
        };
        if let Some(answer) = self.inbox.take(text)
            && let Some(queue) = self.outgoing.upgrade()
        {
            // A flood of requests may not push our own messages out of the queue.
            if queue.capacity() <= ANSWER_SHARE || queue.try_send(answer).is_err() {
                self.inbox.count_dropped();
            }
        }
    }

    fn too_long(&self) -> Failure {
        Failure::too_large(
            ReasonCode::ResultTooLarge,
            format!("the server wrote a line longer than {} bytes", self.line_bytes),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(line_bytes: usize) -> (Reader, Arc<Inbox>) {
        let inbox = Arc::new(Inbox::default());
        let (outgoing, _queue) = mpsc::channel(WRITE_QUEUE);
        let reader = Reader {
            inbox: Arc::clone(&inbox),
            outgoing: outgoing.downgrade(),
            line_bytes,
        };
        (reader, inbox)
    }

    fn answer(id: u64, length: usize) -> String {
        let envelope = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":""}}"#).len();
        format!(
            r#"{{"jsonrpc":"2.0","id":{id},"result":"{}"}}"#,
            "x".repeat(length - envelope)
        )
    }

    #[tokio::test]
    async fn a_line_at_the_limit_arrives_and_one_beyond_it_fails_alone() {
        let (reader, inbox) = reader(4_096);
        let mut fits = inbox.register(1).unwrap();
        let mut over = inbox.register(2).unwrap();
        let mut after = inbox.register(3).unwrap();
        let text = format!("{}\n{}\n{}\n", answer(1, 4_096), answer(2, 4_097), answer(3, 100));
        assert!(reader.run(text.as_bytes()).await.is_none());
        assert!(fits.wait().await.unwrap().is_ok());
        assert_eq!(over.wait().await.unwrap_err().reason, ReasonCode::ResultTooLarge);
        assert!(after.wait().await.unwrap().is_ok());
    }

    #[tokio::test]
    async fn bytes_without_end_are_cut() {
        let (reader, _) = reader(4_096);
        let failure = reader
            .run(tokio::io::repeat(b'x').take(1 << 30))
            .await
            .expect("the framing is broken");
        assert!(failure.ends_session);
        let (reader, inbox) = self::reader(4_096);
        let mut call = inbox.register(1).unwrap();
        let endless = br#"{"jsonrpc":"2.0","id":1,"result":""#.chain(tokio::io::repeat(b'x').take(1 << 30));
        assert!(
            reader
                .run(endless)
                .await
                .expect("the framing is broken")
                .ends_session
        );
        assert_eq!(call.wait().await.unwrap_err().reason, ReasonCode::ResultTooLarge);
    }

    #[tokio::test]
    async fn noise_is_dropped_and_counted() {
        let (reader, inbox) = reader(4_096);
        let mut call = inbox.register(1).unwrap();
        let mut text = b"banner\n\n10%\r20%\r\n{\n\"jsonrpc\":\"2.0\"}\n\xff\xfe\n".to_vec();
        text.extend(answer(1, 80).bytes());
        text.extend(b"\r\n");
        assert!(reader.run(text.as_slice()).await.is_none());
        assert!(call.wait().await.unwrap().is_ok());
        assert_eq!(inbox.dropped(), 5);
    }

    #[test]
    fn the_ring_keeps_the_end() {
        let ring = StderrRing::default();
        for _ in 0..100 {
            ring.push(&[b'a'; 10_000]);
        }
        ring.push(b"the end\x1b[2J\n");
        let tail = ring.tail(&Redactor::default()).unwrap();
        assert!(tail.len() <= STDERR_BYTES + 16);
        assert!(
            tail.ends_with("the end\\u{1b}[2J"),
            "{}",
            &tail[tail.len() - 40..]
        );
    }
}
