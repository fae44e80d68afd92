-- Version 5
CREATE TABLE leases (key TEXT PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE line (key TEXT PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE excluded (key TEXT PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE events (number INTEGER PRIMARY KEY, time REAL NOT NULL, what TEXT NOT NULL, body TEXT NOT NULL);
CREATE TABLE settings (key TEXT PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE facts (key TEXT PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE jobs (id INTEGER PRIMARY KEY, state TEXT NOT NULL, uid INTEGER NOT NULL, label TEXT, body TEXT NOT NULL);
CREATE INDEX jobs_by_state ON jobs (state, id);
CREATE INDEX jobs_by_user ON jobs (uid, id, state);
CREATE INDEX jobs_by_end ON jobs (json_extract(body, '$.ended'));
CREATE INDEX jobs_by_environment ON jobs (json_extract(body, '$.environment'), json_extract(body, '$.ended'));
CREATE TABLE environments (key TEXT PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID;
