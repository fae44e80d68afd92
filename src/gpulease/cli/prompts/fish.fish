# Read by the fish of `gpulease shell` and `gpulease simulate`, after the user's own files: a mark before the prompt.
functions --copy fish_prompt _gpulease_prompt
function fish_prompt
    echo -n $GPULEASE_PROMPT
    _gpulease_prompt
end
