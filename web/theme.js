// Sets the theme before the first paint; the page's policy allows no inline script.
try {
  const theme = localStorage.getItem('heirloom.theme');
  if (theme) document.documentElement.dataset.theme = theme;
} catch (error) {
  // storage is switched off: the system's theme is used
}
