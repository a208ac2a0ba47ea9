"""SQL statements of a desk; the tables are in ``store.py``."""

OPEN = "WHERE status IN ('pending', 'in_progress')"
NEW_SETTING = 'INSERT OR IGNORE INTO setting VALUES (?, ?)'
SET_POLICY = "UPDATE setting SET value = ? WHERE name = 'policy'"
SETTING = 'SELECT value FROM setting WHERE name = ?'
NEW_PLACE = 'INSERT OR IGNORE INTO place VALUES (?, ?)'
KIND = 'SELECT is_model FROM place WHERE name = ?'
REQUEST = 'SELECT * FROM request WHERE id = ?'
REPORT = """SELECT id AS subject_request_id, 'erasure' AS subject_request_type,
    regulation, setting.value AS zone, received AS received_time,
    due AS expected_completion_time, CASE status WHEN 'completed'
    THEN finished END AS completed_time, status AS request_status, halted,
    reason, status != 'cancelled' AND halted != 'held'
    AND coalesce(finished, ?) > due AS overdue, until AS backups_until
    FROM request, setting WHERE setting.name = 'zone' AND id = ?"""
COUNT = 'SELECT count(*) FROM request WHERE status = ?'
STATE = 'SELECT state FROM task WHERE request = ? AND place = ?'
NEW_REQUEST = """INSERT INTO request (id, regulation, immediately, exact,
    names, received, due, status, halted, reason)
    VALUES (?, ?, ?, ?, ?, ?, ?, 'pending', '', '')"""
NEW_TASKS = f"""INSERT OR IGNORE INTO task
    SELECT id, name, 'pending', '', NULL, NULL, '' FROM request, place
    {OPEN} AND ? IN (id, name)"""
NEW_BATCH = """INSERT INTO batch (id, place, state, mode)
    VALUES (?, ?, 'in_progress', ?)"""
TAKE = """UPDATE task SET state = 'in_progress', mode = ?, batch = ?
    WHERE request = ? AND place = ?"""
BEGIN = """UPDATE request SET status = 'in_progress'
    WHERE id = ? AND status = 'pending'"""
UNDO = """UPDATE task SET state = 'pending', mode = '', batch = NULL,
    finished = NULL WHERE batch = ?"""
LEAVE_HALTED = f"""{UNDO} AND mode != 'again'
    AND request IN (SELECT id FROM request WHERE halted != '')"""
ASK_ANEW = f'{UNDO} AND request IN (SELECT id FROM request {OPEN})'
REFUSE = """UPDATE task SET state = 'refused', note = ?
    WHERE request = ? AND place = ?"""
REFUSE_EXACT = f"""UPDATE task SET state = 'refused', note = ?
    WHERE place = ? AND state = 'pending' AND request IN
    (SELECT id FROM request {OPEN} AND exact AND halted = '')"""
REFUSED = f"""SELECT request, place FROM task JOIN request ON id = request
    {OPEN} AND state = 'refused'"""
HALTED = f"SELECT id, halted FROM request {OPEN} AND halted != ''"
HALT = 'UPDATE request SET halted = ?, reason = ? WHERE id = ?'
ASK_AGAIN = """UPDATE task SET state = 'pending', note = ''
    WHERE request = ? AND state = 'refused'"""
BUSY = "SELECT 1 FROM task WHERE request = ? AND state = 'in_progress'"
WAS_TAKEN = 'SELECT 1 FROM task WHERE request = ? AND batch IS NOT NULL'
WAITING = f"""SELECT id, names, due, immediately FROM task
    JOIN request ON id = request {OPEN}
    AND place = ? AND state = 'pending' AND halted = '' ORDER BY due, id"""
SECONDS = """SELECT seconds FROM batch WHERE place = ? AND seconds IS NOT NULL
    ORDER BY rowid DESC LIMIT 1"""
# Who was removed before, or not there, may be there in a restored model.
BATCHES = """SELECT id, head, mode IN ('removed before', 'not in it') AS stated
    FROM batch WHERE place = ? AND state = ? AND (NOT stated OR EXISTS
    (SELECT 1 FROM task JOIN request ON request.id = task.request
    LEFT JOIN tombstone ON tombstone.request = task.request
    WHERE task.batch = batch.id
    AND coalesce(request.names, tombstone.names) IS NOT NULL))
    ORDER BY rowid"""
# Batches that the model's ledger has, up to a head that a setting names.
KEEP = """UPDATE batch SET state = 'kept' WHERE place = ?
    AND state = 'done'"""
ASK_AGAIN_FOR = """UPDATE batch SET state = 'done' WHERE place = ?
    AND state = 'kept'"""
KEPT_UP_TO = 'INSERT OR REPLACE INTO setting VALUES (?, ?)'
SUPERSEDE = "UPDATE batch SET state = 'superseded' WHERE id = ?"
REPEAT = """UPDATE batch SET state = 'in_progress', mode = 'again'
    WHERE id = ?"""
PROMISE = 'SELECT promise FROM batch WHERE id = ?'
PROMISED = 'UPDATE batch SET promise = ? WHERE id = ?'
END_BATCH = """UPDATE batch SET state = 'done', head = ?, seconds = ?,
    mode = coalesce(nullif(?, ''), mode) WHERE id = ?"""
END_TASK = """UPDATE task SET state = 'done', finished = ?, note = ?,
    mode = coalesce(nullif(?, ''), mode) WHERE request = ? AND place = ?"""
TASKS = """SELECT task.request, coalesce(request.names, tombstone.names)
    FROM task JOIN request ON request.id = task.request
    LEFT JOIN tombstone ON tombstone.request = task.request
    WHERE batch = ? ORDER BY request.due, request.id"""
COMPLETE = f"""SELECT id FROM request {OPEN} AND NOT EXISTS
    (SELECT 1 FROM task WHERE request = id AND state != 'done')"""
CLOSE = """UPDATE request SET status = ?, reason = ?, finished = ?,
    until = ?, halted = '', names = NULL WHERE id = ?"""
TOMBSTONE = 'SELECT names FROM tombstone WHERE request = ?'
FORGET_NOTES = """UPDATE task SET note = ''
    WHERE request = ? AND state != 'done'"""
UNCONFIRMED = f"""SELECT request, place FROM task JOIN request ON id = request
    {OPEN} AND state = 'pending' AND mode = 'unconfirmed'"""
ASK_TO_CONFIRM = """UPDATE task SET mode = 'unconfirmed'
    WHERE request = ? AND place = ? AND state = 'pending'"""
EXPIRED = """DELETE FROM tombstone WHERE until < ? AND NOT EXISTS
    (SELECT 1 FROM task WHERE task.request = tombstone.request
    AND state = 'in_progress')"""
EVIDENCE = """SELECT place.name, is_model, task.state, task.mode, finished,
    note, batch.id AS batch, head, promise FROM task
    JOIN place ON place.name = task.place LEFT JOIN batch
    ON batch.id = task.batch WHERE request = ? ORDER BY place.name"""
OTHERS = """SELECT total(most) FROM (SELECT (SELECT max(seconds) FROM batch
    WHERE place = name) AS most FROM place WHERE name != ?)"""
