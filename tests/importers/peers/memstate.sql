BEGIN TRANSACTION;
CREATE TABLE facts
                      (
                          id TEXT PRIMARY KEY,
                          type TEXT NOT NULL,
                          data TEXT NOT NULL,
                          created_at DATETIME DEFAULT CURRENT_TIMESTAMP
                      );
INSERT INTO "facts" VALUES('ea28d2bc-6b82-4239-8d73-e60b81d67167','diet','{"id": "ea28d2bc-6b82-4239-8d73-e60b81d67167", "type": "diet", "payload": {"role": "user", "food": "vegan"}, "source": null, "session_id": "s1", "ts": "2026-11-22T00:10:37.540239Z"}','2026-11-22 00:10:37');
INSERT INTO "facts" VALUES('4240637a-d49d-4db3-94ff-c8143c921203','note','{"id": "4240637a-d49d-4db3-94ff-c8143c921203", "type": "note", "payload": {"text": "walnuts grow \ud83c\udfd4", "tags": ["a", "b"]}, "source": null, "session_id": "s1", "ts": "2026-11-22T00:10:37.541100Z"}','2026-11-22 00:10:37');
INSERT INTO "facts" VALUES('13632a75-f61a-472c-bbf2-f365a769290b','note','{"id": "13632a75-f61a-472c-bbf2-f365a769290b", "type": "note", "payload": {"text": "second note", "tags": []}, "source": null, "session_id": "s2", "ts": "2026-11-22T00:10:37.541385Z"}','2026-11-22 00:10:37');
CREATE TABLE tx_log
                      (
                          tx_id INTEGER PRIMARY KEY AUTOINCREMENT,
                          uuid TEXT NOT NULL,
                          timestamp TEXT NOT NULL,
                          data TEXT NOT NULL
                      );
INSERT INTO "tx_log" VALUES(1,'e7634ee8-6709-431b-a441-4ddc252f871a','2026-11-22T00:10:37.540858Z','{"uuid": "e7634ee8-6709-431b-a441-4ddc252f871a", "session_id": "s1", "seq": 1, "ts": "2026-11-22T00:10:37.540858Z", "op": "COMMIT", "fact_id": "ea28d2bc-6b82-4239-8d73-e60b81d67167", "fact_before": null, "fact_after": {"id": "ea28d2bc-6b82-4239-8d73-e60b81d67167", "type": "diet", "payload": {"role": "user", "food": "vegan"}, "source": null, "session_id": "s1", "ts": "2026-11-22T00:10:37.540239Z"}, "actor": "agent", "reason": "said so"}');
INSERT INTO "tx_log" VALUES(2,'0eb19d39-75f3-4c7f-b728-c3ffea6b99e3','2026-11-22T00:10:37.541221Z','{"uuid": "0eb19d39-75f3-4c7f-b728-c3ffea6b99e3", "session_id": "s1", "seq": 2, "ts": "2026-11-22T00:10:37.541221Z", "op": "COMMIT", "fact_id": "4240637a-d49d-4db3-94ff-c8143c921203", "fact_before": null, "fact_after": {"id": "4240637a-d49d-4db3-94ff-c8143c921203", "type": "note", "payload": {"text": "walnuts grow \ud83c\udfd4", "tags": ["a", "b"]}, "source": null, "session_id": "s1", "ts": "2026-11-22T00:10:37.541100Z"}, "actor": null, "reason": null}');
INSERT INTO "tx_log" VALUES(3,'aea968f0-41fe-4f29-9421-e2efad2f3943','2026-11-22T00:10:37.541478Z','{"uuid": "aea968f0-41fe-4f29-9421-e2efad2f3943", "session_id": "s2", "seq": 3, "ts": "2026-11-22T00:10:37.541478Z", "op": "COMMIT", "fact_id": "13632a75-f61a-472c-bbf2-f365a769290b", "fact_before": null, "fact_after": {"id": "13632a75-f61a-472c-bbf2-f365a769290b", "type": "note", "payload": {"text": "second note", "tags": []}, "source": null, "session_id": "s2", "ts": "2026-11-22T00:10:37.541385Z"}, "actor": null, "reason": null}');
CREATE INDEX idx_facts_type ON facts(type);
CREATE INDEX idx_facts_session ON facts(json_extract(data, '$.session_id'));
CREATE INDEX idx_tx_log_uuid ON tx_log(uuid);
CREATE INDEX idx_tx_log_session ON tx_log(json_extract(data, '$.session_id'));
CREATE INDEX idx_facts_checkpoint_ns ON facts(json_extract(data, '$.payload.checkpoint_ns'));
COMMIT;
