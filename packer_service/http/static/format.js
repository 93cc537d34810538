// Numbers as people read them: thousands separators, units, and no more digits than are meaningful.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const fourDigits = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
const tenth = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const moment = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "short" });

export const capital = (text) => text[0].toUpperCase() + text.slice(1);
export const integer = (value) => whole.format(value);
/** For the ticks of an axis whose steps are powers of two. */
export const binary = (value) => (value >= 1024 && value % 1024 === 0 ? `${integer(value / 1024)}Ki` : integer(value));
/** A mean of counts, with a decimal only where the mean is small enough for it to matter. */
export const mean = (value) => (Math.abs(value) < 1000 ? tenth : whole).format(value);
export const percent = (value, digits = 1) => `${(100 * value).toFixed(digits)}%`;
/** A multiple of something, such as the tile floor or a mean. */
export const times = (value) => `${value.toFixed(3)}×`;
export const plural = (count, one, many = `${one}s`) => `${integer(count)} ${count === 1 ? one : many}`;

function scaled(value, base, units, number = tenth) {
  let power = 0;
  while (power < units.length - 1 && Math.abs(value) >= base ** (power + 1)) power += 1;
  return `${power ? number.format(value / base ** power) : integer(value)} ${units[power]}`;
}

export const bytes = (value) => scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]);
/** A cost in GFLOP, precise enough to compare packs. */
export const flops = (value) => scaled(value, 1000, ["GFLOP", "TFLOP", "PFLOP", "EFLOP"], fourDigits);
/** A duration, from microseconds to hours. */
export const seconds = (value) => {
  if (value === 0) return "0";
  if (value < 1) return `${fourDigits.format(1000 * value)} ms`;
  return value < 3600 ? `${fourDigits.format(value)} s` : `${fourDigits.format(value / 3600)} h`;
};
/** Seconds from the start of a video. */
export const timestamp = (value) => `${value.toFixed(2)} s`;
/** A moment as a day and a time of the reader's own clock. */
export const day = (value) => moment.format(new Date(value));
