# Packs $SOURCE into $DATASET for the model of $MODEL, on the Ray cluster that this runs in. Each attempt continues where the last one stopped.
# Status 1 is an outage or a broken node, which passes; any other status is final: 2 is a command, a configuration or a source that is
# wrong, and would be wrong on a new cluster too; 3 is a dataset that is whole, but lacks more rows than $MAX_REJECTS allows.
for pause in 30 120 0; do
  preshard pack "$SOURCE" --out "$DATASET" --executor ray --config /etc/preshard/pack.yaml --set "model=$MODEL" --max-rejects "$MAX_REJECTS"
  status=$?
  [ "$status" -eq 1 ] || exit "$status"
  sleep "${PRESHARD_PAUSE:-$pause}"
done
exit "$status"
