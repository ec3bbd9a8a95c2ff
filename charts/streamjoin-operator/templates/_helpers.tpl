{{- define "operator.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 53 | trimSuffix "-" }}
{{- end }}

{{/* The name of everything here. */}}
{{- define "operator.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 53 | trimSuffix "-" }}
{{- else }}
{{- $name := include "operator.name" . }}
{{- if contains $name .Release.Name }}{{ .Release.Name | trunc 53 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name $name | trunc 53 | trimSuffix "-" }}{{ end }}
{{- end }}
{{- end }}

{{/* Of the webhook's Service, and of the Secret with its certificate. */}}
{{- define "operator.admission" -}}
{{- printf "%s-admission" (include "operator.fullname" . | trunc 53 | trimSuffix "-") }}
{{- end }}

{{/* Whether the operator makes the webhook's certificate; empty: somebody else does, or there is no webhook. */}}
{{- define "operator.certifies" -}}
{{- if and .Values.admission.enabled (not (or .Values.admission.secretName .Values.admission.certManager)) }}yes{{ end }}
{{- end }}

{{/* Whether the cluster is OpenShift; empty: it is not, or nobody is asked (helm template). */}}
{{- define "operator.isOpenShift" -}}
{{- if eq (toString .Values.openshift) "auto" | ternary (.Capabilities.APIVersions.Has "security.openshift.io/v1") (eq (toString .Values.openshift) "true") }}yes{{ end }}
{{- end }}

{{/* The security context of pods here. OpenShift chooses users and groups, and refuses pods that name others. */}}
{{- define "operator.podSecurity" -}}
{{- include "operator.isOpenShift" . | empty | ternary .Values.podSecurityContext (omit .Values.podSecurityContext "runAsUser" "runAsGroup" "fsGroup") | toYaml }}
{{- end }}

{{/* The proxies, by the names that programs look for; empty: none. */}}
{{- define "operator.proxies" -}}
{{- $no := .Values.proxy.noProxy }}
{{- if or .Values.proxy.http .Values.proxy.https }}
{{- $inside := list "$(KUBERNETES_SERVICE_HOST)" "localhost" "127.0.0.1" "::1" ".svc" ".cluster.local" }}
{{- range $name, $value := dict "HTTP_PROXY" .Values.proxy.http "HTTPS_PROXY" .Values.proxy.https "NO_PROXY" (concat $inside $no | join ",") }}
{{- if $value }}
- {name: {{ $name }}, value: {{ $value | quote }}}
- {name: {{ lower $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}
- {name: STREAMJOIN_HTTP_PROXY, value: {{ .Values.proxy.http | quote }}}
- {name: STREAMJOIN_HTTPS_PROXY, value: {{ .Values.proxy.https | quote }}}
- {name: STREAMJOIN_NO_PROXY, value: {{ join "," $no | quote }}}
{{- end }}
{{- end }}

{{- define "operator.selector" -}}
app.kubernetes.io/name: {{ include "operator.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "operator.labels" -}}
{{ include "operator.selector" . }}
app.kubernetes.io/component: operator
app.kubernetes.io/part-of: streamjoin
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "operator.account" -}}
{{- if .Values.serviceAccount.create }}{{ default (include "operator.fullname" .) .Values.serviceAccount.name }}{{ else }}{{ required "serviceAccount.name: is empty, and serviceAccount.create is false; name a service account that exists" .Values.serviceAccount.name }}{{ end }}
{{- end }}

{{/* Ports of a NetworkPolicy: those of prometheus.url and prometheus.allowedUrls, and the others that are given. */}}
{{- define "operator.prometheusPorts" -}}
{{- $ports := .Values.networkPolicy.prometheusPorts }}
{{- range prepend .Values.prometheus.allowedUrls .Values.prometheus.url | compact | reverse }}
{{- $host := (urlParse .).host }}
{{- $port := ternary 443 80 (hasPrefix "https:" .) }}
{{- if contains ":" $host }}{{ $port = last (splitList ":" $host) | int }}{{ end }}
{{- $ports = prepend $ports $port }}
{{- end }}
{{- range uniq $ports }}
- {protocol: TCP, port: {{ . }}}
{{- end }}
{{- end }}

{{/* Who has the definition that is in the cluster; empty: this release, or there is none, or nobody is asked (helm template). */}}
{{- define "operator.definitionOwner" -}}
{{- with lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" "streamjoins.streamjoin.dev" }}
{{- $has := .metadata.annotations | default dict }}
{{- $release := get $has "meta.helm.sh/release-name" }}
{{- $namespace := get $has "meta.helm.sh/release-namespace" }}
{{- if not $release }}no release{{ else if or (ne $release $.Release.Name) (ne $namespace $.Release.Namespace) }}release {{ $release }} in namespace {{ $namespace }}{{ end }}
{{- end }}
{{- end }}

{{/* Whether Helm leaves the definition that is in the cluster, whatever a release leaves out. */}}
{{- define "operator.definitionIsKept" -}}
{{- with lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" "streamjoins.streamjoin.dev" }}
{{- if eq (get (.metadata.annotations | default dict) "helm.sh/resource-policy") "keep" }}yes{{ end }}
{{- end }}
{{- end }}

{{/* The command by which this release takes the definitions over, which go together. */}}
{{- define "operator.takeDefinition" -}}
{{- $annotations := dict "meta.helm.sh/release-name" .Release.Name "meta.helm.sh/release-namespace" .Release.Namespace }}
{{- $patch := dict "metadata" (dict "labels" (dict "app.kubernetes.io/managed-by" "Helm") "annotations" $annotations) -}}
kubectl patch crd streamjoins.streamjoin.dev streamjoinsnapshots.streamjoin.dev --type=merge -p '{{ toJson $patch }}'
{{- end }}

{{/* A mapping as name=value, one a line. */}}
{{- define "operator.pairs" -}}
{{- $pairs := list }}
{{- range $name, $value := . }}{{ $pairs = append $pairs (printf "%s=%s" $name $value) }}{{ end }}
{{- join "\n" $pairs }}
{{- end }}

{{/* repository:tag, or repository@digest, of global.imageRegistry: (dict "image" .Values.image "root" .) */}}
{{- define "operator.image" -}}
{{- $registry := (.root.Values.global).imageRegistry }}
{{- $repository := empty $registry | not | ternary (printf "%s/%s" (trimSuffix "/" ($registry | default "")) .image.repository) .image.repository }}
{{- if .image.digest }}{{ printf "%s@%s" $repository .image.digest }}{{ else }}{{ printf "%s:%s" $repository (default .root.Chart.AppVersion .image.tag) }}{{ end }}
{{- end }}

{{/* The image of joins with tables, or with spark, named after the engine's where it has no name of its own: (dict "kind" "tables" "root" .) */}}
{{- define "operator.largerImage" -}}
{{- $given := get .root.Values .kind }}
{{- $repository := $given.repository | default (printf "%s-%s" .root.Values.engine.repository .kind) }}
{{- $image := dict "repository" $repository "tag" ($given.tag | default .root.Values.engine.tag) "digest" $given.digest }}
{{- include "operator.image" (dict "image" $image "root" .root) }}
{{- end }}

{{/* A label selector of the namespaces that are watched; {}: all. */}}
{{- define "operator.watchedNamespaces" -}}
{{- with .Values.watch.namespaces }}
matchExpressions:
  - {key: kubernetes.io/metadata.name, operator: In, values: {{ toJson . }}}
{{- else }}
{{- toYaml .Values.watch.namespaceSelector }}
{{- end }}
{{- end }}

{{/* watch.namespaceSelector as text: a=b,c in (d,e) */}}
{{- define "operator.namespaceSelector" -}}
{{- $all := list }}
{{- range $key, $value := .Values.watch.namespaceSelector.matchLabels }}
{{- $all = append $all (printf "%s=%s" $key $value) }}
{{- end }}
{{- range .Values.watch.namespaceSelector.matchExpressions }}
{{- $values := join "," .values }}
{{- $all = append $all (get (dict "In" (printf "%s in (%s)" .key $values) "NotIn" (printf "%s notin (%s)" .key $values) "Exists" .key "DoesNotExist" (print "!" .key)) .operator) }}
{{- end }}
{{- join "," $all }}
{{- end }}

{{/* What the operator may do where StreamJoins are: with their resources, and with the children that it makes of them. */}}
{{- define "operator.rules" -}}
- apiGroups: [streamjoin.dev]
  resources: [streamjoins]
  verbs: [get, list, watch, patch]
- apiGroups: [streamjoin.dev]
  resources: [streamjoins/status]
  verbs: [patch]
- apiGroups: [streamjoin.dev]
  resources: [streamjoinsnapshots]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [streamjoin.dev]
  resources: [streamjoinsnapshots/status]
  verbs: [patch]
# Owner references that block the owner's deletion.
- apiGroups: [streamjoin.dev]
  resources: [streamjoins/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services, configmaps, serviceaccounts]
  verbs: [list, create, patch, delete]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, create, patch]
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, create, patch]
- apiGroups: [""]
  resources: [events]
  verbs: [list, create, patch]
# Only to be passed on, as nobody can give what he has not: drivers may use themselves and what their executors' template
# names (driverPolicy).
- apiGroups: [streamjoin.dev]
  resources: [streamjoins, drivers]
  verbs: [use]
- apiGroups: [""]
  resources: [secrets, persistentvolumeclaims, serviceaccounts]
  verbs: [use]
# Watch and deletecollection it does not use itself: nobody can give what he has not, and drivers make their executors.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete, deletecollection]
# Executors that run get other resources without a restart.
- apiGroups: [""]
  resources: [pods/resize]
  verbs: [patch]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [list, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [list, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [list, create, patch, delete]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, create, patch]
{{- if eq .Values.joins.podMonitor "auto" }}
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors]
  verbs: [list, create, patch, delete]
{{- end }}
{{- end }}
