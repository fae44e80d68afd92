# Read first by the zsh of `gpulease shell` and `gpulease simulate`: the user's own file, in the user's own ZDOTDIR.
() {
    local ours=$ZDOTDIR
    ZDOTDIR=$GPULEASE_ZDOTDIR
    [[ -r $ZDOTDIR/.zshenv ]] && . "$ZDOTDIR/.zshenv"
    GPULEASE_ZDOTDIR=$ZDOTDIR  # that file may have set it
    ZDOTDIR=$ours
}
