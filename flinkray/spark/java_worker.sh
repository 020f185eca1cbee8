# Sourced by the shell in which Ray starts a Java worker of a Spark stage (through BASH_ENV).
# Until Ray's native code has opened its log, it writes to standard error, which Ray would show on
# the user's terminal; it goes to the stage's own log instead, as do the JVM's last words.
unset BASH_ENV
if [ -n "$FLINKRAY_JVM_LOG" ]; then
    exec 2>>"$FLINKRAY_JVM_LOG"
    unset FLINKRAY_JVM_LOG
fi
# Ray has a Java worker load a job's classes by a class loader of its own, which cannot take them
# from an archive (flinkray.spark.class_data).  Where there is one, they are put on the class path,
# as they are in the driver.
if [ -r "${FLINKRAY_CLASS_DATA_OPTION##*:}" ]; then
    java() {
        local argument classes=
        for argument in "$@"; do
            case $argument in -Dray.job.code-search-path=*) classes=${argument#*=} ;; esac
        done
        if [ "$1" = -cp ] && [ -n "$classes" ]; then
            shift 2
            set -- "$FLINKRAY_CLASS_DATA_OPTION" -cp "$classes" "$@"
        fi
        exec "$(type -P java)" "$@"
    }
fi
