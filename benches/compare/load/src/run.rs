//! The two kinds of load: closed and open loop.

use std::collections::VecDeque;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::thread::set_current_timer_slack;

use crate::Phases;
use crate::link::{Link, Pattern};
use crate::options::{Options, Reconnect};
use crate::report::Report;
use crate::response::Response;
use crate::wire::{Dialler, Wire};

/// How long responses are waited for when all requests are sent.
const PATIENCE: Duration = Duration::from_secs(2);
/// Requests lost in one phase after which a proxy counts as broken.
const MAX_LOST: u64 = 10_000;
const READ: EventFlags = EventFlags::IN;

pub struct Load<'o> {
    options: &'o Options,
    dialler: &'o Dialler,
    pattern: Pattern,
    epoll: OwnedFd,
    links: Vec<Link>,
    /// A link for each request that could be sent now, in the order in which they became free.
    free: VecDeque<usize>,
    touched: Vec<usize>,
    buffer: Vec<u8>,
    events: Vec<Event>,
    responses: Vec<Response>,
}

impl<'o> Load<'o> {
    pub fn connect(options: &'o Options, dialler: &'o Dialler) -> io::Result<Self> {
        // A timer of the kernel's may otherwise be 50 microseconds late.
        set_current_timer_slack(NonZeroU64::new(1))?;
        let mut load = Self {
            options,
            dialler,
            pattern: Pattern::new(options),
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            links: Vec::new(),
            free: VecDeque::new(),
            touched: Vec::new(),
            buffer: vec![0; 256 << 10],
            events: Vec::with_capacity(1024),
            responses: Vec::new(),
        };
        for number in 0..options.connections {
            let link = load.watch(number, dialler.dial(number)?)?;
            load.links.push(link);
        }
        // By turns, so that the first requests go to different connections.
        for _ in 0..options.streams.max(1) {
            load.free.extend(0..options.connections);
        }
        Ok(load)
    }

    fn watch(&self, number: usize, wire: Wire) -> io::Result<Link> {
        let link = Link::new(wire, &self.pattern)?;
        epoll::add(
            &self.epoll,
            &link.wire,
            EventData::new_u64(number as u64),
            READ,
        )?;
        Ok(link)
    }

    fn back_to_back(&mut self, may_send: impl Fn(Instant, u64) -> bool) -> Result<Report, String> {
        let begin = Instant::now();
        let mut report = Report::new();
        let (mut sent, mut end) = (0, begin);
        loop {
            let now = Instant::now();
            while may_send(now, sent)
                && let Some(link) = self.free.pop_front()
            {
                self.send(link, now)?;
                sent += 1;
            }
            if may_send(now, sent) {
                end = now;
            } else if self.in_flight() == 0 || now > end + PATIENCE {
                break;
            }
            self.turn(Duration::from_millis(50), &mut report)?;
        }
        Ok(self.finish(report, begin, 0))
    }

    fn at_rate(&mut self, span: Duration, rate: f64) -> Result<Report, String> {
        let begin = Instant::now();
        let total = (span.as_secs_f64() * rate) as u64;
        let due = |number: u64| begin + Duration::from_secs_f64(number as f64 / rate);
        let end = due(total);
        let mut report = Report::new();
        let mut sent = 0;
        loop {
            let now = Instant::now();
            while sent < total && due(sent) <= now {
                let Some(link) = self.free.pop_front() else {
                    break;
                };
                self.send(link, due(sent))?;
                sent += 1;
            }
            if sent == total && self.in_flight() == 0 || now > end + PATIENCE {
                break;
            }
            let is_waiting_for_time = sent < total && !self.free.is_empty();
            let wait = match is_waiting_for_time {
                true => due(sent).saturating_duration_since(Instant::now()),
                false => Duration::from_millis(50),
            };
            self.turn(wait, &mut report)?;
        }
        Ok(self.finish(report, begin, total - sent))
    }

    fn finish(&self, mut report: Report, begin: Instant, unsent: u64) -> Report {
        report.took = begin.elapsed();
        report.unanswered = self.in_flight() as u64 + unsent;
        report
    }

    fn in_flight(&self) -> usize {
        self.links.iter().map(Link::in_flight).sum()
    }

    fn send(&mut self, number: usize, began: Instant) -> Result<(), String> {
        if self.links[number].is_used && self.options.reconnect != Reconnect::No {
            let wire = self.dialler.connect(number);
            self.links[number] = wire
                .and_then(|wire| self.watch(number, wire))
                .map_err(|error| format!("connecting: {error}"))?;
        }
        self.links[number].send(began);
        self.touched.push(number);
        Ok(())
    }

    /// Writes what there is to write, waits, and reads what there is to read.
    fn turn(&mut self, wait: Duration, report: &mut Report) -> Result<(), String> {
        for link in std::mem::take(&mut self.touched) {
            self.flush(link, report)?;
        }
        let wait = Timespec::try_from(wait).map_err(|error| error.to_string())?;
        let mut events = std::mem::take(&mut self.events);
        events.clear();
        match epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(&mut events),
            Some(&wait),
        ) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.to_string()),
        }
        for event in &events {
            // Copied, since the fields of an event are not aligned.
            let (link, flags) = (event.data.u64() as usize, { event.flags });
            if flags.contains(EventFlags::OUT) {
                self.touched.push(link);
            }
            self.receive(link, report)?;
        }
        self.events = events;
        Ok(())
    }

    fn flush(&mut self, number: usize, report: &mut Report) -> Result<(), String> {
        let link = &mut self.links[number];
        let was_blocked = link.is_blocked();
        if link.flush().is_err() {
            return self.replace(number, report);
        }
        // Rare: only large bodies fill a socket's buffer.
        if link.is_blocked() || was_blocked {
            let flags = if link.is_blocked() {
                READ | EventFlags::OUT
            } else {
                READ
            };
            let data = EventData::new_u64(number as u64);
            epoll::modify(&self.epoll, &link.wire, data, flags)
                .map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    fn receive(&mut self, number: usize, report: &mut Report) -> Result<(), String> {
        let link = &mut self.links[number];
        let read = link.receive(&mut self.buffer, &mut self.responses);
        let now = Instant::now();
        for response in self.responses.drain(..) {
            report
                .latencies
                .add(now.saturating_duration_since(response.began));
            report.answered += 1;
            report.resumed += u64::from(link.wire.is_resumed());
            report.unexpected += u64::from(response.status != self.options.expect);
            self.free.push_back(number);
        }
        match read {
            Ok(()) if link.is_blocked() => self.touched.push(number),
            Ok(()) => {}
            Err(_) => self.replace(number, report)?,
        }
        Ok(())
    }

    /// Opens a new connection in the place of one that failed.
    fn replace(&mut self, number: usize, report: &mut Report) -> Result<(), String> {
        let lost = self.links[number].in_flight();
        report.lost += lost as u64;
        if report.lost > MAX_LOST {
            return Err("the proxy closes connections all the time".into());
        }
        let wire = self.dialler.dial(number);
        self.links[number] = wire
            .and_then(|wire| self.watch(number, wire))
            .map_err(|error| format!("connecting again: {error}"))?;
        self.free.extend(std::iter::repeat_n(number, lost));
        Ok(())
    }
}

impl Phases for Load<'_> {
    fn closed(&mut self, span: Duration) -> Result<Report, String> {
        let end = Instant::now() + span;
        self.back_to_back(|now, _| now < end)
    }

    fn count(&mut self, requests: u64) -> Result<Report, String> {
        self.back_to_back(|_, sent| sent < requests)
    }

    fn open(&mut self, span: Duration, rate: f64) -> Result<Report, String> {
        self.at_rate(span, rate)
    }
}

#[cfg(test)]
mod tests;
