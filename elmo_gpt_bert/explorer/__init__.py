"""The page in the browser, zoo-app: what it shows of a sentence, as functions without a page, and the page itself."""
