// A headless Chromium for one script; what the page does wrong is kept.

import sparticuz from "@sparticuz/chromium";
import { chromium } from "playwright-core";

/** Run `use` with a browser, and close it whatever happens. */
export async function withBrowser(use) {
  const executablePath = await sparticuz.executablePath();
  const browser = await launched({ executablePath, args: sparticuz.args, headless: true, timeout: 120_000 });
  try {
    return await use(browser);
  } finally {
    await browser.close();
  }
}

/** A browser; now and then Chromium itself crashes when it starts, which is not what is tested, and is started again. */
async function launched(options, starts = 3) {
  try {
    return await chromium.launch(options);
  } catch (error) {
    if (starts === 1) throw error;
    return launched(options, starts - 1);
  }
}

/** A page at a URL, with the list of errors it has raised and of the places it has asked. */
export async function open(browser, url, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1200, height: 900 }, ...options });
  const page = await context.newPage();
  const seen = { errors: [], origins: new Set() };
  page.setDefaultTimeout(90_000);
  page.on("pageerror", (error) => seen.errors.push(error.message));
  page.on("request", (request) => seen.origins.add(new URL(request.url()).origin));
  await page.goto(url);
  return { page, seen };
}

/** Give the page its API key, and wait until it knows its models. */
export async function unlock(page, key) {
  await page.locator("#key-form").waitFor();
  await page.fill("#key", key);
  await page.press("#key", "Enter");
  await page.waitForFunction(() => document.querySelector("#model").options.length);
}

/** Fill the form. */
export async function fill(page, { text, tokens = 32, gamma = "4", seed = "5", compare = false }) {
  if (text !== undefined) await page.fill("#text", text);
  await page.fill("#max-tokens", String(tokens));
  await page.fill("#gamma", gamma);
  await page.fill("#seed", seed);
  await page.setChecked("#compare", compare);
}

/** Wait until nothing is generated. */
export async function settled(page) {
  await page.waitForFunction(() => !document.querySelector("#run").disabled);
}
