// Charts of the last minutes and of the last hour, drawn as SVG.

import { fill, h, number } from './dashboard.api.js';

const HEIGHT = 100;

/** The spans that a chart can show: how many points, and of how many seconds each is. */
const SPANS = {
  minutes: { length: 180, seconds: 1, from: '3 min ago' },
  hour: { length: 360, seconds: 10, from: '60 min ago' },
};

/** The next of 1, 2, 5, 10, ... so that an axis changes seldom. */
function ceiling(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1e-9)));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value) ?? value;
}

/**
 * A chart with a legend, which shows the values of the second that is pointed at, or of the last.
 * @param {{key: string, name: string, kind: string}[]} series from the bottom to the top
 * @param {boolean} stacked whether they are areas on each other, or lines
 */
export class Chart {
  constructor(place, series, { stacked, show }) {
    this.series = series;
    this.stacked = stacked;
    this.show = show;
    this.all = { minutes: [], hour: [] };
    this.span = 'minutes';
    this.pointed = null;
    this.values = series.map(() => h('b', {}, '–'));
    const legend = h(
      'div',
      { class: 'legend' },
      series.map(({ name, kind }, index) =>
        h('span', {}, h('span', { class: `swatch ${kind}` }), `${name} `, this.values[index]),
      ),
    );
    this.shapes = series.map(({ kind }) => h('path', { class: stacked ? kind : `line ${kind}` }));
    this.cursor = h('line', { class: 'cursor', y1: 0, y2: HEIGHT, visibility: 'hidden' });
    this.svg = h(
      'svg',
      { preserveAspectRatio: 'none', role: 'img' },
      axis(0),
      axis(HEIGHT / 2),
      this.shapes,
      axis(HEIGHT),
      this.cursor,
    );
    this.top = h('span', { class: 'top-label' });
    this.middle = h('span', { class: 'middle-label' });
    this.from = h('span');
    this.when = h('span', {}, 'now');
    fill(
      place,
      legend,
      h(
        'div',
        { class: 'chart' },
        this.svg,
        this.top,
        this.middle,
        h('div', { class: 'times' }, this.from, this.when),
      ),
    );
    this.svg.addEventListener('pointermove', (event) => {
      const box = this.svg.getBoundingClientRect();
      this.pointed = Math.round(((event.clientX - box.left) / box.width) * (this.length - 1));
      this.draw();
    });
    this.svg.addEventListener('pointerleave', () => {
      this.pointed = null;
      this.draw();
    });
  }

  get length() {
    return SPANS[this.span].length;
  }

  /** Shows the last minutes, or the last hour. */
  choose(span) {
    this.span = span;
    this.pointed = null;
    this.draw();
  }

  /** Adds the values of a second by key; null where there are none. */
  add(values) {
    this.push('minutes', this.point(values));
    if (this.span === 'minutes') this.draw();
  }

  /** Shows what the gateway has counted in the last hour, by points of `seconds` each. */
  setHour(points, seconds) {
    this.all.hour = points.map((values) => this.point(values));
    // Nothing but the history is known of the time before the page was opened.
    if (this.all.minutes.length === 0) {
      const last = this.all.hour.slice(-SPANS.minutes.length / seconds);
      this.all.minutes = last.flatMap((point) => Array(seconds).fill(point));
    }
    this.draw();
  }

  point(values) {
    return this.series.map(({ key }) => values[key] ?? null);
  }

  push(span, point) {
    this.all[span].push(point);
    if (this.all[span].length > SPANS[span].length) this.all[span].shift();
  }

  draw() {
    this.points = this.all[this.span];
    const { seconds, from } = SPANS[this.span];
    this.svg.setAttribute('viewBox', `0 0 ${this.length - 1} ${HEIGHT}`);
    fill(this.from, from);
    const sum = (point) => point.reduce((total, value) => total + (value ?? 0), 0);
    const highest = this.points.map((point) => (this.stacked ? sum(point) : Math.max(0, ...point)));
    const top = ceiling(Math.max(...highest, this.stacked ? 10 : 0.1));
    const first = this.length - this.points.length;
    const x = (index) => first + index;
    const y = (value) => (HEIGHT - (value / top) * HEIGHT).toFixed(2);
    const floor = this.points.map(() => 0);
    this.shapes.forEach((shape, place) => {
      let line;
      if (this.stacked) {
        const lower = floor.map((value, index) => `${x(index)},${y(value)}`).reverse();
        this.points.forEach((point, index) => {
          floor[index] += point[place] ?? 0;
        });
        const upper = floor.map((value, index) => `${x(index)},${y(value)}`);
        line = upper.length ? `M${upper.concat(lower).join('L')}Z` : '';
      } else {
        // A gap where there was no request.
        let pen = 'M';
        line = this.points
          .map((point, index) => {
            if (point[place] === null) {
              pen = 'M';
              return '';
            }
            const step = `${pen}${x(index)},${y(point[place])}`;
            pen = 'L';
            return step;
          })
          .join('');
      }
      shape.setAttribute('d', line);
    });
    fill(this.top, this.show(top));
    fill(this.middle, this.show(top / 2));
    const pointed = this.pointed === null ? null : this.pointed - first;
    const point = this.points[pointed] ?? this.points.at(-1);
    const isPointed = pointed !== null && this.points[pointed] !== undefined;
    this.cursor.setAttribute('visibility', isPointed ? 'visible' : 'hidden');
    this.cursor.setAttribute('x1', this.pointed ?? 0);
    this.cursor.setAttribute('x2', this.pointed ?? 0);
    fill(this.when, isPointed ? ago((this.points.length - 1 - pointed) * seconds) : 'now');
    this.values.forEach((value, place) => fill(value, point ? this.show(point[place]) : '–'));
    const told = this.series.map(
      ({ name }, place) => `${name} ${point ? this.show(point[place]) : 'none'}`,
    );
    this.svg.setAttribute('aria-label', told.join(', '));
  }
}

function axis(y) {
  return h('line', { class: 'axis', x1: 0, x2: '100%', y1: y, y2: y });
}

function ago(seconds) {
  return seconds < 120 ? `${seconds} s ago` : `${Math.round(seconds / 60)} min ago`;
}

/** A bar of a share from 0 to 1, with the number beside it. */
export function meter(share, text, kind) {
  const width = Math.min(Math.max(share, 0), 1) * 100;
  return h(
    'span',
    { class: 'meter' },
    h(
      'svg',
      { viewBox: '0 0 100 10', preserveAspectRatio: 'none', 'aria-hidden': 'true' },
      h('rect', { class: kind, width: width.toFixed(1), height: 10 }),
    ),
    h('span', {}, text),
  );
}

/** What the bar of a share used tells: no more than that, until requests are denied. */
export function usedKind(share, isDenied) {
  if (share < 0.8) return 'allowed';
  return share >= 1 && isDenied ? 'denied' : 'would-deny';
}

/** A bar of several counts beside each other. */
export function shares(parts) {
  const total = parts.reduce((sum, [, count]) => sum + count, 0) || 1;
  let from = 0;
  const rectangles = parts.map(([kind, count]) => {
    const width = (count / total) * 100;
    const rectangle = h('rect', {
      class: kind,
      x: from.toFixed(2),
      width: width.toFixed(2),
      height: 10,
    });
    from += width;
    return rectangle;
  });
  const told = parts
    .map(([kind, count]) => `${number(count)} ${kind.replace('-', ' ')}`)
    .join(', ');
  return h(
    'svg',
    {
      class: 'share',
      viewBox: '0 0 100 10',
      preserveAspectRatio: 'none',
      role: 'img',
      'aria-label': told,
    },
    h('title', {}, told),
    rectangles,
  );
}
