{{/* PromQL matchers of this release's series, without braces. */}}
{{- define "specdec.matchers" -}}
namespace="{{ .Release.Namespace }}",release="{{ .Release.Name }}"
{{- end -}}

{{/* PromQL of what a tier has to carry: what its autoscaler divides among replicas. */}}
{{- define "specdec.demand" -}}
{{- $matchers := include "specdec.matchers" .root -}}
{{- if eq .tier "drafter" -}}
sum(specdec_drafter_sessions{ {{- $matchers -}} })
{{- else if eq .tier "verifier" -}}
sum(specdec_requests_running{ {{- $matchers -}} }) + sum(specdec_requests_waiting{ {{- $matchers -}} })
{{- else -}}
sum(specdec_gateway_requests_running{ {{- $matchers -}} })
{{- end -}}
{{- end -}}

{{/* Labels that every series gets, so that rules and dashboards can tell tiers and releases apart. */}}
{{- define "specdec.relabelings" -}}
- {targetLabel: component, replacement: {{ .tier }}}
- {targetLabel: release, replacement: {{ .root.Release.Name }}}
{{- end -}}

{{/* Whether a tier has a pod at all times: the ratio controller says itself when it wants none. */}}
{{- define "specdec.isNeverEmpty" -}}
{{- $ratio := eq (index .root.Values .tier).autoscaling.kind "ratio" -}}
{{- if or $ratio (gt (include "specdec.leastReplicas" . | int) 0) }}true{{ end -}}
{{- end -}}

{{/* Whether `helm test` insists on drafts: not where there may be no drafter, or no draft is allowed. */}}
{{- define "specdec.testDrafts" -}}
{{- $least := include "specdec.leastReplicas" (dict "root" . "tier" "drafter") | int -}}
{{ ternary "required" "optional" (and .Values.drafter.enabled (gt $least 0) (gt (int .Values.speculation.gammaMax) 0)) }}
{{- end -}}
