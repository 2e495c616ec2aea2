{{/* How a tier's Deployment replaces its pods. Every helper takes (dict "root" $ "tier" "drafter"). */}}

{{/* Whether only one node at a time can mount the tier's cache of models. */}}
{{- define "specdec.cacheIsOfOneNode" -}}
{{- with index .root.Values .tier -}}
{{- $cache := .model.cache -}}
{{- if and (include "specdec.downloads" .) (eq $cache.kind "claim") (not (has "ReadWriteMany" $cache.accessModes)) }}true{{ end -}}
{{- end -}}
{{- end -}}

{{/* Number of pods beyond its replicas for which a tier has room. 0 for a GPU tier without declared spare accelerators. */}}
{{- define "specdec.surge" -}}
{{- $values := index .root.Values .tier -}}
{{- if include "specdec.cacheIsOfOneNode" . -}}
0
{{- else if and $values.gpu $values.gpu.enabled -}}
{{ div (int $values.gpu.spare) (int $values.gpu.count) }}
{{- else -}}
1
{{- end -}}
{{- end -}}

{{- define "specdec.strategy" -}}
{{- $surge := include "specdec.surge" . | int -}}
{{- with (index .root.Values .tier).strategy -}}
{{ toYaml . }}
{{- else -}}
type: RollingUpdate
rollingUpdate: {maxSurge: {{ $surge }}, maxUnavailable: {{ ternary 0 1 (gt $surge 0) }}}
{{- end -}}
{{- end -}}

{{/* Seconds that a new pod may need until it is ready, after its image is pulled. */}}
{{- define "specdec.loadSeconds" -}}
{{- $values := index .root.Values .tier -}}
{{- $download := ternary $values.model.downloadSeconds 0 (eq (include "specdec.downloads" $values) "true") -}}
{{ add (int $values.startupSeconds) (int $download) (int $values.minReadySeconds) }}
{{- end -}}

{{/* Deadline of a rollout's progress. It includes 300 s for the scheduler and for pulling the image. */}}
{{- define "specdec.progressDeadlineSeconds" -}}
{{- $values := index .root.Values .tier -}}
{{- $load := include "specdec.loadSeconds" . | int -}}
{{ $values.progressDeadlineSeconds | default (add $load (int $values.terminationGracePeriodSeconds) 300) }}
{{- end -}}

{{/* Minimum number of pods, with or without an autoscaler. */}}
{{- define "specdec.leastReplicas" -}}
{{- with index .root.Values .tier -}}
{{ ternary .replicas .autoscaling.minReplicas (eq .autoscaling.kind "none") }}
{{- end -}}
{{- end -}}

{{/* Maximum number of pods, with or without an autoscaler. */}}
{{- define "specdec.mostReplicas" -}}
{{- with index .root.Values .tier -}}
{{ ternary .replicas .autoscaling.maxReplicas (eq .autoscaling.kind "none") }}
{{- end -}}
{{- end -}}

{{/* Whether the only pod of a tier ends before the next one is ready. */}}
{{- define "specdec.rolloutIsAnOutage" -}}
{{- $alone := eq (include "specdec.leastReplicas" . | int) 1 -}}
{{- if and $alone (not (index .root.Values .tier).strategy) (eq (include "specdec.surge" . | int) 0) }}true{{ end -}}
{{- end -}}

{{/* Seconds of a preStop hook that sleeps: (index .Values "drafter"). */}}
{{- define "specdec.preStopSeconds" -}}
{{- if .lifecycle -}}
{{- $command := dig "preStop" "exec" "command" list .lifecycle -}}
{{- $asleep := and (eq (len $command) 2) (eq (first $command | toString | base) "sleep") -}}
{{ dig "preStop" "sleep" "seconds" (ternary (last $command) 0 $asleep) .lifecycle }}
{{- else -}}
{{ .drain.preStopSeconds }}
{{- end -}}
{{- end -}}
