{{/* Environment of a gateway that names the session store. The URL never lies in a ConfigMap, for it may hold a password. */}}
{{- define "specdec.redisEnv" -}}
{{- $redis := .Values.redis.external -}}
{{- if $redis.existingSecret -}}
- name: SPECDEC_GATEWAY_REDIS_URL
  valueFrom: {secretKeyRef: {name: {{ $redis.existingSecret }}, key: {{ $redis.existingSecretKey }}}}
{{- else -}}
{{- if and $redis.passwordSecret.name $redis.addresses -}}
- name: REDIS_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ $redis.passwordSecret.name }}, key: {{ $redis.passwordSecret.key }}}}
{{ end -}}
- name: SPECDEC_GATEWAY_REDIS_URL
  value: {{ include "specdec.redisUrl" . | quote }}
{{- end -}}
{{- end -}}

{{- define "specdec.redisUrl" -}}
{{- $redis := .Values.redis.external -}}
{{- if $redis.url -}}
{{ $redis.url }}
{{- else if $redis.addresses -}}
{{- $scheme := ternary "rediss" "redis" $redis.tls.enabled -}}
{{- if $redis.sentinelMaster }}{{ $scheme = printf "%s+sentinel" $scheme }}{{ end -}}
{{- $user := $redis.username -}}
{{- if $redis.passwordSecret.name }}{{ $user = printf "%s:$(REDIS_PASSWORD)" $user }}{{ end -}}
{{- if $user }}{{ $user = printf "%s@" $user }}{{ end -}}
{{- $master := "" -}}
{{- if $redis.sentinelMaster }}{{ $master = printf "/%s" $redis.sentinelMaster }}{{ end -}}
{{ $scheme }}://{{ $user }}{{ join "," $redis.addresses }}{{ $master }}/{{ int $redis.database }}{{ include "specdec.redisTlsQuery" $redis.tls }}
{{- else -}}
redis://{{ include "specdec.fullname" . }}-valkey:6379/0
{{- end -}}
{{- end -}}

{{- define "specdec.redisTlsQuery" -}}
{{- $query := list -}}
{{- if and .enabled .caSecret }}{{ $query = append $query (printf "ssl_ca_certs=/redis-ca/%s" .caKey) }}{{ end -}}
{{- if and .enabled .clientSecret }}{{ $query = concat $query (list "ssl_certfile=/redis-client/tls.crt" "ssl_keyfile=/redis-client/tls.key") }}{{ end -}}
{{- if $query }}?{{ join "&" $query }}{{ end -}}
{{- end -}}

{{/* Ports of the session store, for network policies. */}}
{{- define "specdec.redisPorts" -}}
{{- $redis := .Values.redis.external -}}
{{- if and $redis.addresses (not $redis.url) (not $redis.existingSecret) -}}
{{- $ports := list -}}
{{- range $redis.addresses }}{{ $ports = append $ports (splitList ":" . | last | int) }}{{ end -}}
{{- if $redis.sentinelMaster }}{{ $ports = concat $ports .Values.networkPolicy.redisPorts }}{{ end -}}
{{ toJson (uniq $ports) }}
{{- else -}}
{{ toJson .Values.networkPolicy.redisPorts }}
{{- end -}}
{{- end -}}
