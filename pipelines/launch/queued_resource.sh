# The TPU is requested in a queue, which grants it when there is room.
create() {
    gcloud compute tpus queued-resources create "$NAME" --node-id "$NAME" \
        --zone "$ZONE" --project "$PROJECT" \
        --accelerator-type "$ACCELERATOR" --runtime-version "$IMAGE" $SPOT
    while :; do
        state=$(gcloud compute tpus queued-resources describe "$NAME" --zone "$ZONE" \
            --project "$PROJECT" --format "value(state.state)")
        case $state in
        ACTIVE) break ;;
        FAILED | SUSPENDING | SUSPENDED)
            echo "$NAME was refused or lost: run delete, then start again." >&2
            exit 1
            ;;
        esac
        sleep 30
    done
}
delete() {
    gcloud compute tpus queued-resources delete "$NAME" --zone "$ZONE" --project "$PROJECT" \
        --force --quiet
}
