# Completion of @NAME@ for fish.  Made by completions/update from the options of the command and head.fish.

# Whether the verbs of the command line are these.
function __confluo_at
    set -l words (commandline -opc)
    set -e words[1]
    for verb in $argv
        test "$words[1]" = "$verb"
        or return 1
        set -e words[1]
    end
end

# Words with commas between them: each one after those that are already there.
function __confluo_list
    set -l before (commandline -ct | string replace -r '^--[a-z-]+=' '' | string replace -r '[^,]*$' '')
    printf '%s\n' $before$argv
end

# What the command confluo-NAME would offer for the rest of a line `confluo NAME ...`.
function __confluo_rest
    set -l words (commandline -opc)
    set -l name $words[2]
    set -e words[1..2]
    complete -C "confluo-$name "(string join ' ' -- (string escape -- $words) (commandline -ct))
end

