//! Slots of a server, the requests that hold one, and those that wait for one.

use std::collections::HashMap;

use crate::time::{Nanos, Timestamp};

/// How much a request matters. Under pressure the least are shed first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Shed first, and always: work that can be done later, clients that are only tolerated.
    Low,
    /// All that nothing is said of.
    #[default]
    Normal,
    /// Shed after all that is normal.
    High,
    /// Shed last.
    Critical,
}

impl Priority {
    /// All of them, the least first.
    pub const ALL: [Self; 4] = [Self::Low, Self::Normal, Self::High, Self::Critical];

    /// The priority's name in configurations, logs and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Normal => "normal",
            Self::High => "high",
            Self::Critical => "critical",
        }
    }

    /// The priority of a client's request on a route: the higher one, unless the client's is low.
    #[must_use]
    pub fn of_client(self, client: Option<Self>) -> Self {
        match client {
            Some(Self::Low) => Self::Low,
            Some(client) => self.max(client),
            None => self,
        }
    }
}

/// Who asks for a slot, and when.
#[derive(Clone, Copy, Debug)]
pub struct SlotRequest {
    /// The priority of the request.
    pub priority: Priority,
    /// Its client, by a number that tells clients apart.
    pub client: u64,
    /// The time of now.
    pub now: Timestamp,
}

/// A request that waits, among those of one [`Slots`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WaiterId(u64);

/// What becomes of a request that arrives.
#[derive(Debug, PartialEq, Eq)]
pub enum Arrival<T> {
    /// It has a slot.
    Admitted,
    /// It waits for a slot. `displaced` waited in its place, and is shed.
    Waits {
        /// By which it can stop waiting.
        id: WaiterId,
        /// What the request that is shed left.
        displaced: Option<T>,
    },
    /// It is shed.
    Shed,
}

/// The slots of a server. `T` is what a waiting request leaves, by which it is told of its slot.
#[derive(Debug)]
pub struct Slots<T> {
    taken: u32,
    clients: HashMap<u64, Client>,
    /// In the order in which they came.
    waiting: Vec<Waiter<T>>,
    next_id: u64,
    /// Slots that were given until now.
    given: u64,
    /// The last time at which no request of high or critical priority was waiting.
    calm: Timestamp,
    /// By priority: the clients that find no slot and hold none.
    crowded_out: [CrowdedOut; Priority::ALL.len()],
    /// From then on there is none.
    shared_until: Timestamp,
}

/// The last two clients that found no slot although they held none, or came again without one soon
/// after, and when. Two are enough to know of each client whether there is another.
#[derive(Clone, Copy, Debug, Default)]
struct CrowdedOut([Option<(u64, Timestamp)>; 2]);

impl CrowdedOut {
    fn note(&mut self, client: u64, now: Timestamp) {
        let [last, before] = &mut self.0;
        if last.is_some_and(|(known, _)| known != client) {
            *before = *last;
        }
        *last = Some((client, now));
    }

    /// The clients for whose sake slots are shared now.
    fn clients(&self, now: Timestamp) -> impl Iterator<Item = u64> {
        let known = self.0.into_iter().flatten();
        known.filter_map(move |(client, at)| (now.since(at) < SHARED_FOR).then_some(client))
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Client {
    slots: u32,
    waiting: u32,
    /// How many slots had been given when it got its last one, or when it came.
    served: u64,
}

#[derive(Debug)]
struct Waiter<T> {
    id: WaiterId,
    priority: Priority,
    client: u64,
    left: T,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self {
            taken: 0,
            clients: HashMap::new(),
            waiting: Vec::new(),
            next_id: 0,
            given: 0,
            calm: Timestamp::default(),
            crowded_out: Default::default(),
            shared_until: Timestamp::default(),
        }
    }
}

/// How many times as long as others a request of high or critical priority waits for a slot. Where
/// such requests have waited without a break for longer than `LONGEST_QUEUE` waits of others, the
/// next ones wait no longer than others: there are more than fit, and waiting makes all of them
/// late.
const PATIENCE: u64 = 4;
const LONGEST_QUEUE: u64 = 8;

/// While clients that hold no slot find none, a client has at most so many times the slots that are
/// free beside its own: four fifths of them if it is alone in asking for more.
const SHARE: u32 = 4;

/// While requests of a higher priority find no slot, lower ones leave one of so many free for them.
const RESERVE: u32 = 8;

/// How long slots are shared so after a client without any has come for the last time.
const SHARED_FOR: Nanos = Nanos::from_secs(10);

/// As many requests may wait as there are slots, within these bounds. With fewer places, a client
/// with few requests would often find none.
const MIN_WAITING: usize = 10;
const MAX_WAITING: usize = 100;

/// How many requests may wait for one of `limit` slots.
pub fn places(limit: u32) -> usize {
    let slots = usize::try_from(limit).unwrap_or(MAX_WAITING);
    slots.clamp(MIN_WAITING, MAX_WAITING)
}

impl<T> Slots<T> {
    /// Slots that are taken.
    pub const fn taken(&self) -> u32 {
        self.taken
    }

    /// Requests that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether there are requests for all of `limit` slots, or more than may have one.
    pub fn is_short(&self, limit: u32) -> bool {
        self.taken >= limit || !self.waiting.is_empty()
    }

    /// How long a request may wait that arrives now, where the least of requests wait for `usual`.
    ///
    /// One of high or critical priority may wait four times as long, as with few slots none may be
    /// free in time; but not while such requests alone are more than fit (controlled delay, as in
    /// [Fail at Scale](https://queue.acm.org/detail.cfm?id=2839461)).
    pub fn longest_wait(&mut self, priority: Priority, usual: Nanos, now: Timestamp) -> Nanos {
        let mut waiting = self.waiting.iter();
        if !waiting.any(|waiter| waiter.priority >= Priority::High) {
            self.calm = now;
        }
        let times = |times: u64| Nanos::new(usual.get().saturating_mul(times));
        match priority >= Priority::High && now.since(self.calm) <= times(LONGEST_QUEUE) {
            true => times(PATIENCE),
            false => usual,
        }
    }

    /// Takes a slot whether one is free or not.
    pub fn take(&mut self, client: u64) {
        self.taken += 1;
        self.given += 1;
        let held = self.clients.entry(client).or_default();
        held.slots += 1;
        held.served = self.given;
    }

    /// Gives a request one of `limit` slots, or one of `queue` places to wait in, perhaps that of a
    /// request that matters less.
    pub fn arrive(
        &mut self,
        limit: u32,
        queue: usize,
        request: SlotRequest,
        left: impl FnOnce() -> T,
    ) -> Arrival<T> {
        let SlotRequest {
            priority, client, ..
        } = request;
        let is_granted = self.may_take(limit, request);
        self.note_crowded_out(request, is_granted);
        if is_granted {
            self.take(client);
            return Arrival::Admitted;
        }
        let displaced = match self.waiting.len() < queue {
            true => None,
            false => match self.least(priority, client) {
                Some(index) => Some(self.remove(index).left),
                None => return Arrival::Shed,
            },
        };
        let id = WaiterId(self.next_id);
        self.next_id += 1;
        // A client that comes back is last among its equals: were it first each time, a client that
        // always has a request waiting would never be.
        let newcomer = Client {
            served: self.given,
            ..Client::default()
        };
        self.clients.entry(client).or_insert(newcomer).waiting += 1;
        self.waiting.push(Waiter {
            id,
            priority,
            client,
            left: left(),
        });
        Arrival::Waits { id, displaced }
    }

    /// Gives back a slot.
    pub fn release(&mut self, client: u64) {
        self.taken = self.taken.saturating_sub(1);
        self.update(client, |held| {
            held.slots = held.slots.saturating_sub(1);
        });
    }

    /// Gives a free slot to the request that is next, and returns what it left with its client.
    ///
    /// Of those that may have one, the highest priority is next; of its clients, the one that holds
    /// the fewest slots; of the client's requests, the newest, whose sender is the least likely to
    /// have given up.
    pub fn grant(&mut self, limit: u32, now: Timestamp) -> Option<(u64, T)> {
        if self.taken >= limit || self.waiting.is_empty() {
            return None;
        }
        let may_take = |waiter: &Waiter<T>| {
            let (priority, client) = (waiter.priority, waiter.client);
            let request = SlotRequest {
                priority,
                client,
                now,
            };
            self.may_take(limit, request)
        };
        let able = self.waiting.iter().enumerate();
        let able = able.filter(|(_, waiter)| may_take(waiter));
        let highest = able.clone().map(|(_, waiter)| waiter.priority).max()?;
        let mut newest: HashMap<u64, usize> = HashMap::new();
        for (index, waiter) in able {
            if waiter.priority == highest {
                newest.insert(waiter.client, index);
            }
        }
        // Of clients with as many slots, the one that has been given none for the longest time.
        let next = newest.into_iter().min_by_key(|(client, index)| {
            let held = self.client(*client);
            (held.slots, held.served, *index)
        });
        let waiter = self.remove(next?.1);
        self.take(waiter.client);
        Some((waiter.client, waiter.left))
    }

    /// Whether a request may have one of the slots that are free. While higher priorities find none,
    /// it leaves some for them; and while a client that holds fewer than its own finds none, it
    /// leaves at least a quarter of what its client holds.
    fn may_take(&self, limit: u32, request: SlotRequest) -> bool {
        let free = limit.saturating_sub(self.taken);
        if free == 0 || request.now >= self.shared_until {
            return free > 0;
        }
        let SlotRequest {
            priority,
            client,
            now,
        } = request;
        let mut above = self.clients_crowded_out(priority as usize + 1, now);
        let reserve = above.next().map_or(0, |_| limit / RESERVE);
        let held = self.client(client).slots;
        match free.saturating_sub(reserve) {
            0 => false,
            free if held < SHARE.saturating_mul(free - 1) => true,
            _ => {
                let mut equals = self.clients_crowded_out(priority as usize, now);
                !equals.any(|other| self.client(other).slots < held)
            }
        }
    }

    /// The clients that find no slot, of this priority and higher ones.
    fn clients_crowded_out(&self, lowest: usize, now: Timestamp) -> impl Iterator<Item = u64> {
        let known = self.crowded_out.iter().skip(lowest);
        known.flat_map(move |known| known.clients(now))
    }

    /// Notes that a client which holds no slot gets none, or would get none if slots were not
    /// shared.
    fn note_crowded_out(&mut self, request: SlotRequest, is_granted: bool) {
        let SlotRequest {
            priority,
            client,
            now,
        } = request;
        let is_shared = || {
            self.clients_crowded_out(priority as usize, now)
                .next()
                .is_some()
        };
        if is_granted && (now >= self.shared_until || !is_shared()) || self.client(client).slots > 0
        {
            return;
        }
        if let Some(known) = self.crowded_out.get_mut(priority as usize) {
            known.note(client, now);
            self.shared_until = now + SHARED_FOR;
        }
    }

    /// Lets a request wait no longer. None if it waits no more.
    pub fn give_up(&mut self, id: WaiterId) -> Option<T> {
        let index = self.waiting.iter().position(|waiter| waiter.id == id)?;
        Some(self.remove(index).left)
    }

    /// The waiting request that matters less than one of this priority and client: the oldest one
    /// of the client with the most slots and places among the least.
    fn least(&self, priority: Priority, client: u64) -> Option<usize> {
        let lowest = self.waiting.iter().map(|waiter| waiter.priority).min()?;
        if lowest > priority {
            return None;
        }
        let load = |client: u64| {
            let held = self.client(client);
            held.slots + held.waiting
        };
        let least = self.waiting.iter().enumerate();
        let least = least.filter(|(_, waiter)| waiter.priority == lowest);
        let (index, found) =
            least.max_by_key(|(index, waiter)| (load(waiter.client), usize::MAX - index))?;
        let is_less = lowest < priority || load(found.client) > load(client);
        (is_less || found.client == client).then_some(index)
    }

    fn client(&self, client: u64) -> Client {
        self.clients.get(&client).copied().unwrap_or_default()
    }

    fn remove(&mut self, index: usize) -> Waiter<T> {
        let waiter = self.waiting.remove(index);
        self.update(waiter.client, |held| {
            held.waiting = held.waiting.saturating_sub(1);
        });
        waiter
    }

    /// Changes what is held by a client, who is forgotten when that is nothing.
    fn update(&mut self, client: u64, change: impl FnOnce(&mut Client)) {
        if let Some(held) = self.clients.get_mut(&client) {
            change(held);
            if held.slots == 0 && held.waiting == 0 {
                self.clients.remove(&client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Arrive(Priority, u64),
        /// Ends the request that has held its slot for the longest time.
        End,
        GiveUp(usize),
        Limit(u32),
        Wait(u64),
    }

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_nanos(millis * 1_000_000)
    }

    fn request(priority: Priority, client: u64, millis: u64) -> SlotRequest {
        SlotRequest {
            priority,
            client,
            now: at(millis),
        }
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let priority = prop::sample::select(Priority::ALL.to_vec());
        let step = prop_oneof![
            6 => (priority, 0..4_u64).prop_map(|(priority, client)| Step::Arrive(priority, client)),
            4 => Just(Step::End),
            1 => (0..8_usize).prop_map(Step::GiveUp),
            1 => (1..20_u32).prop_map(Step::Limit),
            1 => (1..9000_u64).prop_map(Step::Wait),
        ];
        prop::collection::vec(step, 1..200)
    }

    const QUEUE: usize = 4;

    /// Requests by number: where each is.
    #[derive(Default)]
    struct Model {
        slots: Slots<usize>,
        held: Vec<(usize, u64)>,
        waiting: Vec<(usize, WaiterId, Priority, u64)>,
        shed: usize,
        ended: usize,
    }

    impl Model {
        fn held_by(&self, client: u64) -> usize {
            self.held.iter().filter(|(_, of)| *of == client).count()
        }

        /// Passes on free slots, and holds each one against what was waiting.
        fn pass_on(&mut self, limit: u32, millis: u64) {
            while let Some((client, number)) = self.slots.grant(limit, at(millis)) {
                let index = self.waiting.iter().position(|waits| waits.0 == number);
                let (_, _, priority, of) = self.waiting.remove(index.unwrap());
                assert_eq!(of, client);
                for (_, _, other, rival) in &self.waiting {
                    let held = self.held_by(*rival);
                    assert!(*other <= priority || held > 0, "a lower one was next");
                    assert!(
                        *other != priority || held >= self.held_by(client),
                        "a client with fewer slots waits"
                    );
                }
                self.held.push((number, client));
            }
            self.assert_no_slot_is_idle(limit);
        }

        /// A slot that is free is kept from those who wait by the share of their clients alone, or
        /// for a higher priority.
        fn assert_no_slot_is_idle(&self, limit: u32) {
            let limit = limit as usize;
            let free = limit.saturating_sub(self.held.len() + limit / RESERVE as usize);
            for (_, _, _, client) in &self.waiting {
                let held = self.held_by(*client);
                let is_bound = held > 0 && held + 1 > SHARE as usize * (free.max(1) - 1);
                assert!(free == 0 || is_bound, "{free} idle, {held} held");
            }
        }
    }

    proptest! {
        /// Each request has a slot, waits, was shed, or has ended, and never two of these.
        #[test]
        fn no_request_is_lost_or_counted_twice_and_no_more_than_the_limit_are_let_in(
            steps in steps(),
        ) {
            let (mut model, mut limit, mut arrived, mut now) = (Model::default(), 3, 0, 0);
            for step in steps {
                match step {
                    Step::Arrive(priority, client) => {
                        let number = arrived;
                        arrived += 1;
                        let before = model.slots.taken();
                        let asked = request(priority, client, now);
                        match model.slots.arrive(limit, QUEUE, asked, || number) {
                            Arrival::Admitted => {
                                prop_assert!(before < limit);
                                model.held.push((number, client));
                            }
                            Arrival::Waits { id, displaced } => {
                                if let Some(displaced) = displaced {
                                    let index = model.waiting.iter().position(|it| it.0 == displaced);
                                    let gone = model.waiting.remove(index.unwrap());
                                    prop_assert!(gone.2 <= priority, "a higher one was displaced");
                                    model.shed += 1;
                                }
                                model.waiting.push((number, id, priority, client));
                            }
                            Arrival::Shed => model.shed += 1,
                        }
                    }
                    Step::End if !model.held.is_empty() => {
                        let (_, client) = model.held.remove(0);
                        model.slots.release(client);
                        model.ended += 1;
                    }
                    Step::End => {}
                    Step::GiveUp(index) => {
                        if index < model.waiting.len() {
                            let (number, id, ..) = model.waiting.remove(index);
                            prop_assert_eq!(model.slots.give_up(id), Some(number));
                            prop_assert_eq!(model.slots.give_up(id), None);
                            model.shed += 1;
                        }
                    }
                    Step::Limit(changed) => limit = changed,
                    Step::Wait(millis) => now += millis,
                }
                model.pass_on(limit, now);
                prop_assert_eq!(model.slots.taken() as usize, model.held.len());
                prop_assert_eq!(model.slots.waiting(), model.waiting.len());
                prop_assert!(model.waiting.len() <= QUEUE);
                let known = model.held.len() + model.waiting.len() + model.shed + model.ended;
                prop_assert_eq!(known, arrived, "a request is lost");
            }
            let clients = model.slots.clients.len();
            prop_assert!(clients <= model.held.len() + model.waiting.len(), "clients are kept");
        }

        /// One client floods; another sends as many as have a slot at a time, and gets half of
        /// them.
        #[test]
        fn no_client_is_starved_by_another_of_the_same_priority(
            limit in 1..8_u32,
            flood in 2..20_usize,
        ) {
            let mut slots = Slots::default();
            let (mut held, mut served): (Vec<u64>, _) = (Vec::new(), [0, 0]);
            for _ in 0..200 {
                let arrivals = std::iter::repeat_n(0, flood).chain([1]);
                for client in arrivals {
                    let asked = request(Priority::Normal, client, 0);
                    match slots.arrive(limit, 8, asked, || client) {
                        Arrival::Admitted => held.push(client),
                        Arrival::Waits { .. } | Arrival::Shed => {}
                    }
                }
                let client = held.remove(0);
                served[usize::from(client == 1)] += 1;
                slots.release(client);
                while let Some((client, _)) = slots.grant(limit, at(0)) {
                    held.push(client);
                }
            }
            prop_assert!(served[1] >= 95, "{served:?}");
        }

        /// Clients that always ask for more hold each slot for up to a second. Another one, that
        /// comes now and then, finds no slot at first; from a second on it finds one at once.
        #[test]
        fn a_client_that_holds_no_slot_is_never_starved_by_those_that_hold_most(
            limit in 2..60_u32,
            greedy in 1..4_u64,
            holds in prop::collection::vec(1..1000_u64, 1..20),
            pauses in prop::collection::vec(2..300_u64, 1..20),
        ) {
            const LIGHT: u64 = 100;
            let limit = limit.max(2 * u32::try_from(greedy).unwrap());
            let mut holds = holds.into_iter().cycle();
            let mut pauses = pauses.into_iter().cycle();
            let mut slots = Slots::default();
            let mut held: Vec<(u64, u64)> = Vec::new();
            let mut next = 1;
            for now in 0..3000 {
                let (over, still): (Vec<_>, _) = held.into_iter().partition(|(end, _)| *end <= now);
                held = still;
                for (_, client) in over {
                    slots.release(client);
                    while let Some((client, ())) = slots.grant(limit, at(now)) {
                        held.push((now + holds.next().unwrap(), client));
                    }
                }
                for client in 0..greedy {
                    while slots.client(client).waiting < 3 {
                        let asked = request(Priority::Normal, client, now);
                        match slots.arrive(limit, 100, asked, || ()) {
                            Arrival::Admitted => held.push((now + holds.next().unwrap(), client)),
                            Arrival::Waits { .. } => {}
                            Arrival::Shed => panic!("there are places to wait in"),
                        }
                    }
                }
                if now >= next {
                    let asked = request(Priority::Normal, LIGHT, now);
                    match slots.arrive(limit, 100, asked, || ()) {
                        Arrival::Admitted => held.push((now + 1, LIGHT)),
                        Arrival::Waits { id, .. } => {
                            prop_assert!(now <= 1001, "it is starved at {now} ms");
                            prop_assert!(slots.give_up(id).is_some());
                        }
                        Arrival::Shed => panic!("there are places to wait in"),
                    }
                    next = now + pauses.next().unwrap();
                }
            }
        }

        /// However many clients had none of them a while ago.
        #[test]
        fn one_client_alone_uses_all_slots(
            limit in 1..60_u32,
            others in 0..5_u64,
            priority in prop::sample::select(Priority::ALL.to_vec()),
        ) {
            let mut slots = Slots::default();
            for client in 0..others {
                for _ in 0..limit {
                    let _ = slots.arrive(limit, 0, request(priority, client, 0), || ());
                }
            }
            for client in 0..others {
                while slots.client(client).slots > 0 {
                    slots.release(client);
                }
            }
            for _ in 0..limit {
                let asked = request(priority, 10, 10_000);
                let arrival = slots.arrive(limit, 0, asked, || ());
                prop_assert_eq!(arrival, Arrival::Admitted);
            }
        }
    }

    /// Six clients of one connection come back each time they have been served; the seventh has ten
    /// connections, so that one of its requests always waits.
    #[test]
    fn a_client_that_always_waits_is_not_starved_by_others_that_come_and_go() {
        const BUSY: u64 = 6;
        let mut slots = Slots::default();
        let mut held = VecDeque::new();
        let mut served = [0; 7];
        let mut away: Vec<u64> = (0..BUSY).chain([BUSY; 10]).collect();
        for _ in 0..2400 {
            for client in std::mem::take(&mut away) {
                let asked = request(Priority::Normal, client, 0);
                match slots.arrive(4, 10, asked, || client) {
                    Arrival::Admitted => held.push_back(client),
                    Arrival::Waits { displaced, .. } => away.extend(displaced),
                    Arrival::Shed => away.push(client),
                }
            }
            let client = held.pop_front().unwrap();
            slots.release(client);
            served[usize::try_from(client).unwrap()] += 1;
            away.push(client);
            while let Some((client, _)) = slots.grant(4, at(0)) {
                held.push_back(client);
            }
        }
        let share = 2400 / 7;
        assert!(served[6] >= share, "{served:?}");
        assert!(
            served.iter().all(|served| *served >= share * 3 / 4),
            "{served:?}"
        );
    }

    #[test]
    fn what_matters_waits_longer_unless_it_is_itself_more_than_fits() {
        let (usual, long) = (Nanos::new(10_000_000), Nanos::new(40_000_000));
        let mut slots = Slots::default();
        slots.take(0);
        assert_eq!(slots.longest_wait(Priority::Normal, usual, at(0)), usual);
        assert_eq!(slots.longest_wait(Priority::High, usual, at(0)), long);
        let asked = request(Priority::High, 1, 0);
        let Arrival::Waits { id, .. } = slots.arrive(1, 10, asked, || ()) else {
            panic!("no slot is free");
        };
        assert_eq!(slots.longest_wait(Priority::Critical, usual, at(80)), long);
        assert_eq!(slots.longest_wait(Priority::High, usual, at(81)), usual);
        slots.give_up(id);
        assert_eq!(slots.longest_wait(Priority::High, usual, at(90)), long);
    }

    /// The share of one client does not help here: each of them holds one slot.
    #[test]
    fn what_matters_more_finds_a_slot_although_many_clients_that_matter_less_take_all_they_get() {
        let mut slots = Slots::default();
        for client in 0..8 {
            let arrival = slots.arrive(8, 0, request(Priority::Low, client, 0), || ());
            assert_eq!(arrival, Arrival::Admitted);
        }
        let critical = |now| request(Priority::Critical, 100, now);
        assert_eq!(slots.arrive(8, 0, critical(0), || ()), Arrival::Shed);
        slots.release(0);
        for client in 10..20 {
            let arrival = slots.arrive(8, 0, request(Priority::Low, client, 1), || ());
            assert_eq!(arrival, Arrival::Shed);
        }
        assert_eq!(slots.arrive(8, 0, critical(1), || ()), Arrival::Admitted);
        slots.release(100);
        // It comes no more.
        let arrival = slots.arrive(8, 0, request(Priority::Low, 20, 10_001), || ());
        assert_eq!(arrival, Arrival::Admitted);
    }

    #[test]
    fn the_clients_that_are_remembered_are_two_for_each_priority_however_many_come() {
        let mut crowded_out = CrowdedOut::default();
        for client in 0..1000 {
            crowded_out.note(client, at(client));
        }
        let known: Vec<_> = crowded_out.clients(at(1000)).collect();
        assert_eq!(known, [999, 998]);
        crowded_out.note(999, at(20_000));
        let known: Vec<_> = crowded_out.clients(at(20_000)).collect();
        assert_eq!(known, [999]);
    }

    #[test]
    fn a_client_that_is_low_is_low_on_a_route_that_is_critical_and_no_client_is_lowered_else() {
        let of = |route: Priority, client| route.of_client(Some(client));
        assert_eq!(of(Priority::Critical, Priority::Low), Priority::Low);
        assert_eq!(of(Priority::Critical, Priority::High), Priority::Critical);
        assert_eq!(of(Priority::Low, Priority::High), Priority::High);
        assert_eq!(Priority::Low.of_client(None), Priority::Low);
    }
}
