// Charts of the last minutes, drawn as SVG.

import { fill, h, number } from './dashboard.api.js';

const HEIGHT = 100;

/** How many seconds a chart shows. */
export const SPAN = 180;

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
    this.points = [];
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
      { viewBox: `0 0 ${SPAN - 1} ${HEIGHT}`, preserveAspectRatio: 'none', role: 'img' },
      h('line', { class: 'axis', x1: 0, x2: SPAN, y1: 0, y2: 0 }),
      h('line', { class: 'axis', x1: 0, x2: SPAN, y1: HEIGHT / 2, y2: HEIGHT / 2 }),
      this.shapes,
      h('line', { class: 'axis', x1: 0, x2: SPAN, y1: HEIGHT, y2: HEIGHT }),
      this.cursor,
    );
    this.top = h('span', { class: 'top-label' });
    this.middle = h('span', { class: 'middle-label' });
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
        h('div', { class: 'times' }, h('span', {}, `${SPAN / 60} min ago`), this.when),
      ),
    );
    this.svg.addEventListener('pointermove', (event) => {
      const box = this.svg.getBoundingClientRect();
      this.pointed = Math.round(((event.clientX - box.left) / box.width) * (SPAN - 1));
      this.draw();
    });
    this.svg.addEventListener('pointerleave', () => {
      this.pointed = null;
      this.draw();
    });
  }

  /** Adds the values of a second by key; null where there are none. */
  add(values) {
    this.points.push(this.series.map(({ key }) => values[key] ?? null));
    if (this.points.length > SPAN) this.points.shift();
    this.draw();
  }

  draw() {
    const sum = (point) => point.reduce((total, value) => total + (value ?? 0), 0);
    const highest = this.points.map((point) => (this.stacked ? sum(point) : Math.max(0, ...point)));
    const top = ceiling(Math.max(...highest, this.stacked ? 10 : 0.1));
    const first = SPAN - this.points.length;
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
    fill(this.when, isPointed ? `${this.points.length - 1 - pointed} s ago` : 'now');
    this.values.forEach((value, place) => fill(value, point ? this.show(point[place]) : '–'));
    const told = this.series.map(
      ({ name }, place) => `${name} ${point ? this.show(point[place]) : 'none'}`,
    );
    this.svg.setAttribute('aria-label', told.join(', '));
  }
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
