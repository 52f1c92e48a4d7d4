"use strict";

// The number a cell begins with, such as 1,234.5 of "1,234.5 MiB"; NaN for text.
function number(text) {
  const match = text.replaceAll(",", "").match(/^[-−]?\d+(\.\d+)?(e[-+]?\d+)?/i);
  return match ? parseFloat(match[0].replace("−", "-")) : NaN;
}

// Numbers by size, before text by alphabet; dashes (nothing there) last in either direction.
function compare(a, b, direction) {
  const [missingA, missingB] = [a === "–", b === "–"];
  if (missingA || missingB) return missingA - missingB;
  const [x, y] = [number(a), number(b)];
  if (!isNaN(x) && !isNaN(y)) return direction * (x - y);
  if (isNaN(x) !== isNaN(y)) return isNaN(x) - isNaN(y);
  return direction * a.localeCompare(b, "en");
}

function sort(button) {
  const header = button.closest("th");
  const direction = header.getAttribute("aria-sort") === "ascending" ? -1 : 1;
  for (const other of header.parentElement.children) other.setAttribute("aria-sort", "none");
  header.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
  const body = header.closest("table").tBodies[0];
  const text = (row) => row.cells[header.cellIndex].textContent.trim();
  const rows = [...body.rows].sort((a, b) => compare(text(a), text(b), direction));
  body.append(...rows);
}

for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => sort(button));
}
