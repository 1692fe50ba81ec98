//! The standard input of a child, which can be closed from two sides.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::io::AsyncWrite;
use tokio::net::unix::pipe;
use tokio::time::Instant;

/// The pipe, shared by who writes into it and who stops the child.
#[derive(Debug)]
pub(super) struct Input(Mutex<State>);

#[derive(Debug)]
enum State {
    Open {
        pipe: pipe::Sender,
        /// The writer that waits for room.
        waiting: Option<Waker>,
    },
    Closed(Instant),
}

impl Input {
    pub(super) fn new(pipe: pipe::Sender) -> Self {
        Self(Mutex::new(State::Open { pipe, waiting: None }))
    }

    /// Ends the child's input and tells since when it has been at its end.
    pub(super) fn close(&self) -> Instant {
        let mut state = self.state();
        match &mut *state {
            State::Closed(since) => *since,
            State::Open { waiting, .. } => {
                let waiting = waiting.take();
                let now = Instant::now();
                *state = State::Closed(now);
                drop(state);
                if let Some(writer) = waiting {
                    writer.wake();
                }
                now
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The writing side. Shutting it down or dropping it ends the child's input.
#[derive(Debug)]
pub(super) struct InputWriter(Arc<Input>);

impl InputWriter {
    pub(super) fn new(input: Arc<Input>) -> Self {
        Self(input)
    }
}

impl AsyncWrite for InputWriter {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut *self.0.state() {
            State::Closed(_) => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            State::Open { pipe, waiting } => {
                let outcome = Pin::new(pipe).poll_write(context, bytes);
                *waiting = outcome.is_pending().then(|| context.waker().clone());
                outcome
            }
        }
    }

    /// A pipe has nothing to flush.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.close();
        Poll::Ready(Ok(()))
    }
}

impl Drop for InputWriter {
    fn drop(&mut self) {
        self.0.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn a_writer_that_waits_for_room_learns_that_the_input_was_closed() {
        let (sender, mut receiver) = pipe::pipe().unwrap();
        let input = Arc::new(Input::new(sender));
        let mut writer = InputWriter::new(input.clone());
        let writing = tokio::spawn(async move { writer.write_all(&vec![7; 4 << 20]).await });
        while !matches!(&*input.state(), State::Open { waiting: Some(_), .. }) {
            tokio::task::yield_now().await;
        }
        let since = input.close();
        let outcome = tokio::time::timeout(std::time::Duration::from_secs(10), writing).await;
        let error = outcome.expect("it is woken").unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        let mut received = Vec::new();
        receiver.read_to_end(&mut received).await.unwrap();
        assert!(received.iter().all(|byte| *byte == 7));
        assert_eq!(input.close(), since, "closed once");
    }
}
