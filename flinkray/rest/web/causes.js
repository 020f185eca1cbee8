// The innermost cause of a failure, out of its stack trace.

const BEGINNING = "Traceback (most recent call last):";
const CAUSED_BY = "Caused by: ";
const CHAINED = /\n\n(?:The above exception was the direct cause of the following exception:\s*|During handling of the above exception, another exception occurred:\s*)/;
const JAVA = /^\s*(?:at [\w.$/]+[(<]|\.\.\. \d+ more$|Caused by: |Driver stacktrace:$)/;
const FRAME = /^ +File "([^"]+)", line (\d+), in (.+)$/;

// {text, place, after}: what was raised, as its line says it; the file, line and function, null if
// they are not known; and what was raised because of it, in order. Python tells the innermost cause
// first, Java last.
export function innermost(trace) {
  const [first, ...others] = trace.split(CHAINED).map(raised);
  if (first.place) return { ...first, after: others.map((it) => it.text) };
  const causes = trace.split("\n").filter((line) => line.startsWith(CAUSED_BY));
  return { text: causes.at(-1)?.slice(CAUSED_BY.length) ?? firstLine(trace), place: null, after: [] };
}

// The innermost of one traceback: Spark's errors have another one in their text.
function raised(trace) {
  const lines = [];
  for (const line of trace.slice(Math.max(0, trace.lastIndexOf(BEGINNING))).split("\n")) {
    if (JAVA.test(line)) break;
    lines.push(line);
  }
  const frame = lines.findLastIndex((line) => FRAME.test(line));
  if (frame < 0) return { text: firstLine(trace), place: null };
  let said = frame + 1;
  while (said < lines.length && lines[said].startsWith("    ")) said += 1;
  const [, file, number, name] = lines[frame].match(FRAME);
  return {
    text: lines.slice(said).join("\n").trim() || firstLine(trace),
    place: `${file.split("/").at(-1)}, line ${number}, in ${name}`,
  };
}

function firstLine(text) {
  return text.trim().split("\n")[0] || "no text";
}
