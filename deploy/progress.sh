# Sourced by the scripts that set things up. `going_on WORDS FOLDER COMMAND...` runs a command, and says every 15 s that it goes
# on and how many MB the folder has.
going_on() {
  local words=$1 folder=$2 status=0 teller
  shift 2
  (
    trap 'kill "$pause" 2>/dev/null; exit' TERM
    while :; do
      sleep 15 &
      pause=$!
      wait "$pause"
      echo "$words: still at it after $SECONDS s, $(du -sm "$folder" 2>/dev/null | cut -f1) MB so far" >&2
    done
  ) &
  teller=$!
  "$@" || status=$?
  kill "$teller" 2>/dev/null
  wait "$teller" 2>/dev/null || true
  return "$status"
}
