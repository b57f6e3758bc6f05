# One TPU VM, or all hosts of a slice.
create() {
    gcloud compute tpus tpu-vm create "$NAME" --zone "$ZONE" --project "$PROJECT" \
        --accelerator-type "$ACCELERATOR" --version "$IMAGE" $SPOT
}
delete() {
    gcloud compute tpus tpu-vm delete "$NAME" --zone "$ZONE" --project "$PROJECT" --quiet
}
# on HOST COMMAND, where HOST is a number or `all`
on() {
    gcloud compute tpus tpu-vm ssh "$NAME" --zone "$ZONE" --project "$PROJECT" \
        --worker "$1" --command "$2"
}
copy() {
    gcloud compute tpus tpu-vm scp "$1" "$NAME:" --zone "$ZONE" --project "$PROJECT" \
        --worker all
}
addresses() {
    gcloud compute tpus tpu-vm describe "$NAME" --zone "$ZONE" --project "$PROJECT" \
        --format "value(networkEndpoints[].ipAddress)" |
        tr ';' '\n' | sed 's|.*|grpc://&:8470|' | paste -s -d , -
}
