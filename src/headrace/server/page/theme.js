// Runs before the first paint: the chosen theme, or the system's if none was chosen.
"use strict";
try {
  const theme = localStorage.getItem("headrace.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // A browser that keeps nothing for this page shows the system's theme.
}
