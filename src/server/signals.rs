//! The signals that a gateway obeys.

use std::io;

use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// `SIGTERM` or `SIGINT`: finish what is in flight and end. Asked for twice: end at once.
    Drain,
    /// `SIGHUP`: load the configuration again.
    Reload,
    /// `SIGUSR2`: start a successor.
    Restart,
}

/// The signals that arrive from now on.
#[derive(Debug)]
pub struct Signals {
    terminate: Stream,
    interrupt: Stream,
    hangup: Stream,
    user2: Stream,
}

impl Signals {
    /// Takes over the four signals from the system, which would end the process at each of them.
    /// Call it on the runtime that will wait for them.
    ///
    /// # Errors
    /// When the system refuses to hand a signal over.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            user2: signal(SignalKind::user_defined2())?,
        })
    }

    /// The next signal. Signals of one kind that arrive together are one.
    pub async fn next(&mut self) -> Signal {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => Signal::Drain,
            _ = self.interrupt.recv() => Signal::Drain,
            _ = self.hangup.recv() => Signal::Reload,
            _ = self.user2.recv() => Signal::Restart,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, id};

    fn send(signal: &str) {
        let kill = format!("kill -{signal} {}", id());
        assert!(
            Command::new("sh")
                .args(["-c", &kill])
                .status()
                .unwrap()
                .success()
        );
    }

    #[tokio::test]
    async fn the_signals_ask_for_what_the_manual_says() {
        let mut signals = Signals::new().unwrap();
        for (name, asks) in [
            ("TERM", Signal::Drain),
            ("INT", Signal::Drain),
            ("HUP", Signal::Reload),
            ("USR2", Signal::Restart),
        ] {
            send(name);
            assert_eq!(signals.next().await, asks, "{name}");
        }
    }
}
