// One subject of a limit or of a ban: how it stands, and what an operator can do about it. Each
// change is confirmed, and the gateway logs who made it.

import { $, ask, duration, fill, h, number, path } from './dashboard.api.js';
import { meter } from './dashboard.charts.js';

let configuration = { limits: [], bans: [] };
let explain = () => {};
let current = null;

/** What is in force, and how the form to explain a request is opened. */
export function configure(inForce, explainAddress) {
  configuration = inForce;
  explain = explainAddress;
}

/** The bans that count the same as a limit, so that its subjects can be banned. */
export function bansFor(name) {
  const limit = configuration.limits.find((known) => known.name === name);
  const per = limit?.per.join();
  return configuration.bans.filter((ban) => ban.per.join() === per);
}

/** The address within a subject of a limit per address; undefined for others. */
export function addressOf(name, subject) {
  const limit = configuration.limits.find((known) => known.name === name);
  const isAddress = limit?.per.length === 1 && limit.per[0].startsWith('address');
  return isAddress ? subject.split('/')[0] : undefined;
}

/**
 * Opens the bucket of a subject, and the form of an action if one is named.
 * @param {{action?: string, name?: string, suggested?: object}} known the name of its account, and the
 *   override that is suggested for it
 */
export async function openBucket(limit, subject, { action, name, suggested } = {}) {
  const buttons = [
    ['reset', 'Reset…', reset, 'fill its bucket'],
    ['refund', 'Refund…', refund, 'give back some of what it was charged'],
    ['override', 'Override…', override, 'give it other parameters, for a while or for good'],
    ['delete', 'Delete the override…', deleteOverride, 'give it those of all others again'],
    ['ban', 'Ban…', ban, 'deny all of its requests for a while'],
  ].filter(([name]) => name !== 'ban' || bansFor(limit).length > 0);
  const title = name ?? subject;
  await open({ limit, subject, title, suggested, load: loadBucket, buttons }, action);
}

/** Opens the ban of a subject. */
export async function openBan(ban, subject, action) {
  const buttons = [
    ['ban', 'Ban…', banBy, 'deny all of its requests for a while'],
    ['lift', 'Lift the ban…', lift, 'let it in again'],
  ];
  await open({ ban, subject, title: subject, load: loadBan, buttons }, action);
}

/** Opens an override that an operator has set, with the form to undo it. */
export async function openOverride(limit, id, undone) {
  let isUndone = false;
  const undo = () =>
    confirm({
      text: `${id} has the parameters of ${limit} again that it had before.`,
      label: 'Undo the override',
      act: async () => {
        await ask('DELETE', path('v1/overrides', limit, id));
        isUndone = true;
        undone();
        return 'Undone';
      },
    });
  const load = async () => {
    const gone = h('p', { class: 'muted' }, 'There is no such override any more.');
    if (isUndone) return gone;
    const { overrides } = await ask('GET', path('v1/overrides', limit, id));
    const told = overrides.find(({ origin }) => origin === 'api');
    if (!told) return gone;
    return facts([
      ['Limit', limit],
      ['Set', `by ${told.set_by} at ${told.set_at}`],
      ['Why', told.comment],
      ['Until', told.until ?? 'for good'],
    ]);
  };
  await open({ limit, subject: id, title: id, load, buttons: [], isOverride: true }, null);
  // Another one may have been opened meanwhile.
  if (current?.isOverride && current.limit === limit && current.subject === id) undo();
}

async function open(subject, action) {
  current = subject;
  fill($('subject-title'), h('span', { class: 'id' }, subject.title));
  fill($('subject-result'));
  fill($('subject-state'), h('p', { class: 'muted' }, 'Loading …'));
  $('subject-form').hidden = true;
  const forms = Object.fromEntries(subject.buttons.map(([name, , show]) => [name, show]));
  const address = subject.isOverride ? null : addressOf(subject.limit, subject.subject);
  fill(
    $('subject-actions'),
    subject.buttons.map(([name, label, show, what]) =>
      h(
        'div',
        { class: 'action' },
        h('button', { type: 'button', id: `do-${name}`, onclick: () => show(current) }, label),
        h('span', { class: 'muted' }, what),
      ),
    ),
    address &&
      h(
        'div',
        { class: 'action' },
        h('button', { type: 'button', onclick: () => explainFrom(address) }, 'Explain'),
        h('span', { class: 'muted' }, 'see how a request from there is decided'),
      ),
  );
  if (!$('subject').open) $('subject').showModal();
  await refresh();
  if (current === subject && action) forms[action]?.(subject);
}

function explainFrom(address) {
  const { limit } = current;
  $('subject').close();
  explain(address, limit);
}

async function refresh() {
  const subject = current;
  try {
    const state = await subject.load(subject);
    if (current !== subject) return;
    fill($('subject-state'), state);
    const canDelete = subject.bucket?.override?.origin === 'api';
    const toDelete = $('do-delete')?.closest('.action');
    if (toDelete) toDelete.hidden = !canDelete;
  } catch (error) {
    if (current === subject) fill($('subject-state'), h('p', { class: 'error' }, error.message));
  }
}

function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== null && value !== undefined);
  return h(
    'dl',
    {},
    shown.flatMap(([name, value]) => [h('dt', {}, name), h('dd', {}, value)]),
  );
}

async function loadBucket({ limit, subject }) {
  const bucket = await ask('GET', path('v1/buckets', limit, subject));
  if (current?.subject === subject) current.bucket = bucket;
  const burst = bucket.burst ?? bucket.most;
  const used = burst - bucket.remaining;
  const override = bucket.override;
  const until = override?.until ? `, until ${override.until}` : '';
  const comment = override?.comment ? ` (${override.comment})` : '';
  const kind = bucket.remaining === 0 ? 'denied' : used / burst >= 0.8 ? 'would-deny' : 'allowed';
  return [
    meter(used / burst, `${number(used)} of ${number(burst)} used`, kind),
    facts([
      ['Limit', bucket.limit],
      [
        'Parameters',
        bucket.count &&
          `${bucket.burst} at once, ${bucket.count} each ${bucket.period ?? 'window'}`,
      ],
      ['Override', override ? `${override.id}${comment}${until}` : 'none'],
      [
        'Next request',
        bucket.retry_in > 0 ? `allowed in ${duration(bucket.retry_in * 1000)}` : 'allowed now',
      ],
      ['Full again', bucket.reset_in > 0 ? `in ${duration(bucket.reset_in * 1000)}` : 'now'],
      ['Bucket', h('code', {}, bucket.key)],
      ['Beware', bucket.warning],
    ]),
  ];
}

/** How long a ban holds that ends in so many seconds; never, if there are none. */
export function length(seconds) {
  return seconds === null ? 'for good' : `for ${duration(seconds * 1000)}`;
}

/** Who set a ban by hand, for whom, and why. */
function setBy({ subject, by, comment }) {
  return `for ${subject} by ${by}${comment ? `: ${comment}` : ''}`;
}

async function loadBan({ ban, subject }) {
  const state = await ask('GET', path('v1/bans', ban, subject));
  return facts([
    ['Ban', state.ban],
    ['State', state.banned ? `banned ${length(state.ends_in)}` : 'not banned'],
    ['Set', state.standing && setBy(state.standing)],
    ['Strikes', state.strikes === undefined ? undefined : number(state.strikes)],
    ['Offences', state.offences === undefined ? undefined : number(state.offences ?? 0)],
    ['Bucket', state.key && h('code', {}, state.key)],
    ['Beware', state.warning],
  ]);
}

/**
 * Asks for confirmation, and for what else is to be known.
 * @param {{text: string, label: string, kind?: string, fields?: Node[]}} question
 *   and `act`, which does it, and returns what is to be told
 */
function confirm({ text, label, kind, fields, act }) {
  const form = $('subject-form');
  const button = h('button', { class: kind ?? 'primary' }, label);
  const cancel = h('button', { type: 'button', onclick: () => close() }, 'Cancel');
  const opener = document.activeElement;
  const close = () => {
    form.hidden = true;
    opener?.focus();
  };
  fill($('subject-result'));
  fill(
    form,
    h('p', {}, text),
    fields?.length ? h('div', { class: 'fields' }, fields) : null,
    h('div', { class: 'buttons' }, button, cancel),
  );
  form.onsubmit = async (event) => {
    event.preventDefault();
    button.disabled = true;
    try {
      const done = await act();
      close();
      fill($('subject-result'), h('span', { class: 'chip good' }, done));
      await refresh();
    } catch (error) {
      fill($('subject-result'), h('span', { class: 'error' }, error.message));
    } finally {
      button.disabled = false;
    }
  };
  form.hidden = false;
  (form.querySelector('input, select') ?? button).focus();
}

function field(label, name, attributes) {
  return h(
    'label',
    {},
    label,
    h('input', { name, autocomplete: 'off', spellcheck: 'false', ...attributes }),
  );
}

const valueOf = (name) => $('subject-form').elements.namedItem(name).value.trim();

function reset({ limit, subject }) {
  confirm({
    text: `The bucket of ${subject} for ${limit} becomes full: what was counted is forgotten.`,
    label: 'Reset the bucket',
    act: async () => {
      const bucket = await ask('DELETE', path('v1/buckets', limit, subject));
      return `Reset: ${number(bucket.remaining)} left`;
    },
  });
}

function refund({ limit, subject }) {
  confirm({
    text: `${subject} gets back units of ${limit} that it was charged.`,
    label: 'Refund',
    fields: [field('Units', 'cost', { type: 'number', min: 1, value: 1, required: true })],
    act: async () => {
      const cost = Number(valueOf('cost'));
      const bucket = await ask('POST', `${path('v1/buckets', limit, subject)}/refund`, { cost });
      return `Refunded: ${number(bucket.remaining)} left`;
    },
  });
}

/** Other parameters of the limit for the subject, for a time. */
function override({ limit, subject, title, bucket, suggested }) {
  if (!bucket) return;
  const count = bucket.count ?? bucket.burst;
  const wanted = suggested ?? {
    burst: bucket.burst * 2,
    count: count * 2,
    in_flight: bucket.most * 2,
  };
  const parameters = bucket.most
    ? [field('In flight', 'in_flight', { type: 'number', min: 1, value: wanted.in_flight })]
    : [
        field('Burst', 'burst', { type: 'number', min: 1, value: wanted.burst }),
        field('Count', 'count', { type: 'number', min: 1, value: wanted.count }),
        bucket.period && field('Each', 'period', { value: bucket.period }),
      ];
  confirm({
    text: `${limit} has these parameters for ${title}, on all gateways that share the store.`,
    label: 'Set the override',
    fields: [
      ...parameters.filter(Boolean),
      field('For 1h, until 2030-12-31, or empty for good', 'for', { value: '1h' }),
      field('Comment', 'comment', {}),
    ],
    act: async () => {
      const form = new FormData($('subject-form'));
      const written = [...form].map(([name, value]) => [name, value.trim()]);
      const isNumber = (name) => ['burst', 'count', 'in_flight'].includes(name);
      const body = written
        .filter(([, value]) => value !== '')
        .map(([name, value]) => [
          name === 'for' && /^\d{4}-/.test(value) ? 'until' : name,
          isNumber(name) ? Number(value) : value,
        ]);
      const target = path('v1/overrides', limit, overrideId(subject));
      const set = await ask('PUT', target, Object.fromEntries(body));
      return set.warnings ? `Set, but: ${set.warnings.join('; ')}` : 'Set';
    },
  });
}

/** The id of an override for this subject alone: a bare `*` would cover others as well. */
function overrideId(subject) {
  return subject.replaceAll('*', '\\*');
}

function deleteOverride({ limit, subject, bucket }) {
  const id = bucket?.override?.id ?? overrideId(subject);
  confirm({
    text: `The override of ${id} for ${limit} that was set here ends.`,
    label: 'Delete the override',
    act: async () => {
      await ask('DELETE', path('v1/overrides', limit, id));
      return 'Deleted';
    },
  });
}

function banForm(bans, subject) {
  const select = h(
    'select',
    { name: 'ban' },
    bans.map((ban) => h('option', { value: ban.name }, ban.name)),
  );
  confirm({
    text: `All requests of ${subject} are denied, on all gateways that share the store.`,
    label: 'Ban',
    kind: 'danger',
    fields: [
      bans.length > 1 ? h('label', {}, 'By', select) : null,
      field('For, such as 2h, or forever', 'for', { value: bans[0].lengths[0], required: true }),
      field('Comment', 'comment', { maxlength: 200 }),
    ].filter(Boolean),
    act: async () => {
      const name = bans.length > 1 ? valueOf('ban') : bans[0].name;
      const comment = valueOf('comment');
      const state = await ask('PUT', path('v1/bans', name, subject), {
        for: valueOf('for'),
        ...(comment && { comment }),
      });
      return `Banned by ${name} ${length(state.ends_in)}`;
    },
  });
}

function ban({ limit, subject }) {
  banForm(bansFor(limit), subject);
}

function banBy({ ban: name, subject }) {
  banForm(
    configuration.bans.filter((known) => known.name === name),
    subject,
  );
}

function lift({ ban: name, subject }) {
  confirm({
    text: `The ban of ${subject} ends, and its strikes and offences are forgotten.`,
    label: 'Lift the ban',
    act: async () => {
      await ask('DELETE', path('v1/bans', name, subject));
      return 'Lifted';
    },
  });
}

$('subject-close').addEventListener('click', () => $('subject').close());
$('subject').addEventListener('close', () => {
  current = null;
});
// A click beside the dialog closes it, as its button and Escape do.
$('subject').addEventListener('click', (event) => {
  if (event.target === $('subject')) $('subject').close();
});
