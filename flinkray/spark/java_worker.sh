# Sourced by the shell in which Ray starts a Java worker of a Spark stage (through BASH_ENV).
# Until Ray's native code has opened its log, it writes to standard error, which Ray would show on
# the user's terminal; it goes to the stage's own log instead, as do the JVM's last words.
unset BASH_ENV
if [ -n "$FLINKRAY_JVM_LOG" ]; then
    exec 2>>"$FLINKRAY_JVM_LOG"
    unset FLINKRAY_JVM_LOG
fi
