# Completes voirkit's command line in fish. Printed by "voirkit completion fish".
function __voirkit_begins
    test (count (commandline -opc)) -eq 1
end

# Whether the words so far are those of a command; of "run": whether SCRIPT is still to come.
function __voirkit_reads --argument-names command
    set -l words (commandline -opc)
    set -e words[1]
    if test $command != run
        test "$words[1]" = $command
        return
    end
    contains -- "$words[1]" init probes watch report compare explain export completion syscalls; and return 1
    set -l value 0
    for word in $words
        if test $value = 1
            set value 0
            continue
        end
        switch $word
            case --config --trust --hang --prometheus --otlp --log --loader-ops --calls-every --calls-warmup --parameters-of --what-if --pairs --stop --stop-after --require --run-dir --trace-limit --ranks
                set value 1
            case -- -m
                return 1
            case '-*'
            case '*'
                return 1
        end
    end
    return 0
end

complete -c voirkit -n __voirkit_begins -a init -d 'write a first voirfile for a script'
complete -c voirkit -n __voirkit_begins -a probes -d 'list what can be probed in a script'
complete -c voirkit -n __voirkit_begins -a watch -d 'show a run while it goes on'
complete -c voirkit -n __voirkit_begins -a report -d 'show the summary of a run'
complete -c voirkit -n __voirkit_begins -a compare -d 'compare two runs'
complete -c voirkit -n __voirkit_begins -a explain -d 'explain what a report finds to be wrong'
complete -c voirkit -n __voirkit_begins -a export -d 'write the trace of a run for other tools'
complete -c voirkit -n __voirkit_begins -a completion -d 'print the completion script of bash, zsh or fish'
complete -c voirkit -n __voirkit_begins -a syscalls -d 'read the records of --syscalls alone'
complete -c voirkit -n '__voirkit_reads run' -s h -l help -d 'show this help message and exit'
complete -c voirkit -n '__voirkit_reads run' -l version -d 'print voirkit\'s version and exit'
complete -c voirkit -n '__voirkit_reads run' -l config -r -d 'read options from a TOML, YAML or JSON file'
complete -c voirkit -n '__voirkit_reads run' -l trust -x -a '(__fish_complete_directories)' -d 'take voirfiles and configuration files in DIR and below, whoever owns them; also'
complete -c voirkit -n '__voirkit_reads run' -l follow -d 'SCRIPT is a shell script: run each python that it starts under voirkit'
complete -c voirkit -n '__voirkit_reads run' -l hang -x -d 'report a run as hung after SECONDS without a step, or 20 times the median step'
complete -c voirkit -n '__voirkit_reads run' -l monitor -d 'sample processor, memory, storage, network and GPUs every SECONDS'
complete -c voirkit -n '__voirkit_reads run' -l prometheus -x -d 'serve rates, steps, shares and what --monitor samples to Prometheus, on this'
complete -c voirkit -n '__voirkit_reads run' -l otlp -x -d 'send the metrics of --prometheus to an OpenTelemetry collector, by OTLP over'
complete -c voirkit -n '__voirkit_reads run' -l tensorboard -a '(__fish_complete_directories)' -d 'write rates, phases, loss and the verdict for TensorBoard, into a folder of DIR'
complete -c voirkit -n '__voirkit_reads run' -l mlflow -d 'log rates, phases, loss and the verdict to MLflow, into the script\'s run where'
complete -c voirkit -n '__voirkit_reads run' -l wandb -d 'log rates, phases, loss and the verdict to Weights & Biases, into the script\'s'
complete -c voirkit -n '__voirkit_reads run' -l dash -d 'show a live view of steps, rates, progress and given values; the key q closes it'
complete -c voirkit -n '__voirkit_reads run' -l display -d 'print all given values on stderr, one event a line'
complete -c voirkit -n '__voirkit_reads run' -l log -x -d 'log the given values of this key or pattern (\'*_rate\'); \'+task\' adds another key'
complete -c voirkit -n '__voirkit_reads run' -l options -d 'give the arguments that the script parses with argparse, as options'
complete -c voirkit -n '__voirkit_reads run' -l train-rate -d 'give train_rate (items/s, from step and batch) once a second'
complete -c voirkit -n '__voirkit_reads run' -l loading-rate -d 'give loading_rate (items/s that the given loader delivers) once a second'
complete -c voirkit -n '__voirkit_reads run' -l compute-rate -d 'give compute_rate (items/s between compute_start and compute_end) once a second'
complete -c voirkit -n '__voirkit_reads run' -l checks -d 'look for silent bugs: missing zero_grad, parameters that never change, training'
complete -c voirkit -n '__voirkit_reads run' -l loader -d 'record each sample, transform, worker and wait of the data loaders'
complete -c voirkit -n '__voirkit_reads run' -l loader-ops -x -d 'with --loader: functions to record as operations of their own, such as a'
complete -c voirkit -n '__voirkit_reads run' -l native -d 'sample C functions of each phase, and with --loader of each loader operation'
complete -c voirkit -n '__voirkit_reads run' -l flame -d 'sample the stacks of all threads and workers with py-spy, for a flame graph of'
complete -c voirkit -n '__voirkit_reads run' -l gil -d 'with --flame: only threads that hold the GIL'
complete -c voirkit -n '__voirkit_reads run' -l calls -d 'record calls of the functions of these modules, torch or your own, with commas'
complete -c voirkit -n '__voirkit_reads run' -l calls-every -x -d 'record the calls of one step in N'
complete -c voirkit -n '__voirkit_reads run' -l calls-warmup -x -d 'with --calls-every: record all calls of the first M steps'
complete -c voirkit -n '__voirkit_reads run' -l calls-list -d 'print what --calls would record, what not and why, and exit'
complete -c voirkit -n '__voirkit_reads run' -l syscalls -a 'full files counts counters' -d 'count system calls of each phase, thread and worker, with kernel tracing as'
complete -c voirkit -n '__voirkit_reads run' -l torch-profile -d 'record operators and kernels with torch\'s profiler in a window of steps'
complete -c voirkit -n '__voirkit_reads run' -l memory-snapshot -a 'tracemalloc' -d 'report the memory of each phase, with --torch-profile of each operator too, and'
complete -c voirkit -n '__voirkit_reads run' -l parameters -d 'record norms, changes, gradients and NaN of each parameter at optimizer steps'
complete -c voirkit -n '__voirkit_reads run' -l parameters-of -x -a 'buffers state' -d 'also record the models\' buffers, the optimizers\' state, or both; implies'
complete -c voirkit -n '__voirkit_reads run' -l what-if -x -a 'list' -d 'run the script with and without a change, in pairs, and report the gain'
complete -c voirkit -n '__voirkit_reads run' -l pairs -x -d 'with --what-if: number of pairs'
complete -c voirkit -n '__voirkit_reads run' -l loader-sweep -d 'run the script for STEPS steps with each of several numbers of loader workers'
complete -c voirkit -n '__voirkit_reads run' -l stop -x -d 'stop the script after N values of the rate (train_rate, if none is asked for)'
complete -c voirkit -n '__voirkit_reads run' -l stop-after -x -d 'stop the script after this time: 30s, 5m, 1.5h, 250ms'
complete -c voirkit -n '__voirkit_reads run' -l require -x -d 'exit with code 3 if the run misses a target: "train_rate>=500", "memory<2GB"'
complete -c voirkit -n '__voirkit_reads run' -l github-summary -d 'append the report as Markdown to the job\'s summary, the file that'
complete -c voirkit -n '__voirkit_reads run' -l verify -d 'check that loss, step+batch, use_cuda and others are given; exit with code 3 if'
complete -c voirkit -n '__voirkit_reads run' -l run-dir -x -a '(__fish_complete_directories)' -d 'directory to record the run in'
complete -c voirkit -n '__voirkit_reads run' -l force -d 'replace the run in --run-dir'
complete -c voirkit -n '__voirkit_reads run' -l compact -d 'compact the trace when the run ends, not when it is first read: it takes less'
complete -c voirkit -n '__voirkit_reads run' -l trace-limit -x -d 'disk space for the trace, such as 500MB; events beyond it are only counted'
complete -c voirkit -n '__voirkit_reads run' -l html -d 'also write the report as one HTML page, report.html in the run directory'
complete -c voirkit -n '__voirkit_reads run' -l quiet -d 'print errors and warnings only'
complete -c voirkit -n '__voirkit_reads run' -l no-steps -d 'do not record training steps: no phases, rates and verdict'
complete -c voirkit -n '__voirkit_reads run' -l ranks -x -a 'timing' -d 'timing: have torch keep collectives, and take how long NCCL\'s run on the device'
complete -c voirkit -n '__voirkit_reads init' -s h -l help -d 'show this help message and exit'
complete -c voirkit -n '__voirkit_reads probes' -s h -l help -d 'show this help message and exit'
complete -c voirkit -n '__voirkit_reads probes' -s m -x -d 'a module instead of a script'
complete -c voirkit -n '__voirkit_reads probes' -l json -d 'print one JSON document'
complete -c voirkit -n '__voirkit_reads watch' -s h -l help -d 'show this help message and exit'
complete -c voirkit -n '__voirkit_reads watch' -l once -d 'print one picture and end'
complete -c voirkit -n '__voirkit_reads report' -s h -l help -d 'show this help message and exit'
complete -c voirkit -n '__voirkit_reads report' -l check -d 'hold what --loader recorded against what must be true of it; 3 if something is'
complete -c voirkit -n '__voirkit_reads report' -l html -d 'write all of it as one HTML page'
complete -c voirkit -n '__voirkit_reads report' -l json -d 'print the whole summary as JSON; of several runs a list'
complete -c voirkit -n '__voirkit_reads report' -l engine -x -d 'compute what each rank did on the Dask cluster whose scheduler is at ADDRESS'
complete -c voirkit -n '__voirkit_reads report' -l markdown -d 'print it as Markdown, for the summary of a CI job or an issue'
complete -c voirkit -n '__voirkit_reads compare' -s h -l help -d 'show this help message and exit'
complete -c voirkit -n '__voirkit_reads compare' -l with -x -a '(__fish_complete_directories)' -d 'run directories of the second side'
complete -c voirkit -n '__voirkit_reads compare' -l calls -d 'find where what --calls recorded begins to differ'
complete -c voirkit -n '__voirkit_reads compare' -l html -d 'write the comparison as an HTML page; - is stdout'
complete -c voirkit -n '__voirkit_reads compare' -l json -d 'print the comparison as JSON'
complete -c voirkit -n '__voirkit_reads compare' -l markdown -d 'print it as Markdown, for the summary of a CI job'
complete -c voirkit -n '__voirkit_reads compare' -l require -x -d 'exit with code 3 if the second misses a target beside the first'
complete -c voirkit -n '__voirkit_reads compare' -l force -d 'compare runs of which one has no training steps'
complete -c voirkit -n '__voirkit_reads compare' -l engine -x -d 'compute what each rank did on the Dask cluster whose scheduler is at ADDRESS'
complete -c voirkit -n '__voirkit_reads explain' -s h -l help -d 'show this help message and exit'
complete -c voirkit -n '__voirkit_reads export' -s h -l help -d 'show this help message and exit'
complete -c voirkit -n '__voirkit_reads export' -l format -x -a 'chrome pfw perfetto otlp parquet arrow csv lotus speedscope collapsed traincheck' -d 'one of those below'
complete -c voirkit -n '__voirkit_reads export' -s o -l output -r -d 'where to'
complete -c voirkit -n '__voirkit_reads export' -l steps -x -d 'only steps A to B-1, and what happened meanwhile'
complete -c voirkit -n '__voirkit_reads export' -l ranks -x -d 'only these ranks: 0,2-3'
complete -c voirkit -n '__voirkit_reads export' -l force -d 'overwrite files that are there'
complete -c voirkit -n '__voirkit_reads completion' -s h -l help -d 'show this help message and exit'
complete -c voirkit -n '__voirkit_reads syscalls' -s h -l help -d 'show this help message and exit'
complete -c voirkit -n '__voirkit_reads syscalls' -l top -x -d 'rows of each phase, or of differences'
complete -c voirkit -n '__voirkit_reads syscalls' -l over-time -d 'show when they were made as well, of one log'
complete -c voirkit -n '__voirkit_reads syscalls' -l json -d 'print everything as JSON'
complete -c voirkit -n '__voirkit_reads run' -s m -d 'run a module'
