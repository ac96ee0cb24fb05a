"""One exchange on a fresh connection: names, dialling, one HTTP GET, and what broke it."""
