"""One exchange on a fresh connection: dialling, one HTTP GET, and what broke it."""
