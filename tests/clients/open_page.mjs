#!/usr/bin/env node
// The browser of a user who signs in: `open_page.mjs URL` follows the URL to a page. A program that opens a
// browser starts it as `BROWSER`, or as `xdg-open`. Adds the URL to the file STORY_PAGES.
import { appendFileSync } from 'node:fs';

import { browse } from './sign_in.mjs';

const url = process.argv[2];
appendFileSync(process.env.STORY_PAGES, `${url}\n`);
await browse(url);
